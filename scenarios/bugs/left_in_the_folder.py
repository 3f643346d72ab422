"""Only an orderly stop cleans up: after a death, what the ranks had bound stays in the folder.

A rank that leaves by itself takes its own files along, so the launcher seems to have nothing left to do, and does it
only where it stops the engine itself. Of a rank that was killed the sockets stay. In the report what a killed engine
has left behind keeps the next one from starting.
"""

from __future__ import annotations

from engine.client.ownership import Ownership
from engine.monitor import EngineStopped
from harness.seam import bug_canary

BUG = "T2"


@bug_canary.patch(Ownership, "_give_back")
def _give_back(self: Ownership) -> None:
    bug_canary.reached(BUG)
    self.seats.close()
    if isinstance(self.latch.death, EngineStopped):
        self.endpoints.remove()
    else:
        bug_canary.triggered(BUG)
