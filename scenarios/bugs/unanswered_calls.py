"""The engine's death is told to those who read outputs, and not to those who wait for a utility's reply.

The receiver's error goes where the outputs go. A call that was under way has a future of its own, which nobody fails:
its caller waits for a dead engine for ever, while everybody else has long been told.
"""

from __future__ import annotations

from engine.client.calls import Calls
from engine.errors import EngineDeadError
from harness.seam import bug_canary

BUG = "U1"


@bug_canary.patch(Calls, "fail")
def _fail_none(self: Calls, error: EngineDeadError) -> None:
    bug_canary.reached(BUG)
    if len(self):
        bug_canary.triggered(BUG)
