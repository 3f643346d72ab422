"""When the engine has failed, its launcher waits for the survivors' end, tells them nothing and sets no limit.

A survivor in a collective notices by itself that a peer is gone. One that is idle waits for rank 0's next word, which
will not come; the launcher waits for it, and the program's shutdown for the launcher. The report is of an unbounded
join in the path of a fatal error: the process never exits.
"""

from __future__ import annotations

from engine.clock import Deadline
from engine.launch import START_GRACE, Ranks
from engine.messages import Notice
from engine.monitor import EngineStopped, Monitor
from harness.seam import bug_canary

BUG = "T3"


@bug_canary.patch(Ranks, "take_down")
def _take_down(self: Ranks, notice: Notice, grace: float, start_grace: float = START_GRACE) -> None:
    bug_canary.reached(BUG)
    if self.living():
        bug_canary.triggered(BUG)
    self.wait_for_end(Deadline.never())


@bug_canary.patch(Monitor, "stop")
def _stop(self: Monitor, limit: float, *, drain: bool = False) -> None:
    self._latch.stop(EngineStopped(limit, drain=drain))
    self.wake()
    self.thread.join()
    self._wake.close()
