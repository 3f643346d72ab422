"""A step has no deadline: what bounds it is the group's own timeout, and that is days away.

So it was in the engine of the seed report, whose control group was made without a timeout. Nobody notices as long as
nothing is lost. When one frame of the relay is, its rank waits for it, the others wait in a collective for that rank,
and nothing in the engine will ever say so.
"""

from __future__ import annotations

import torch.distributed as dist

from engine.clock import Deadline
from engine.config import EngineConfig
from engine.lifeline import Lifeline
from engine.parallel import group
from harness.seam import bug_canary

BUG = "H4"

_wait_for = group.wait_for


def _none(self: EngineConfig) -> float | None:
    bug_canary.reached(BUG)
    return None


bug_canary.patch(EngineConfig, "step_limit")(property(_none))


@bug_canary.patch(group, "wait_for")
def _wait_for_good(work: dist.Work, lifeline: Lifeline, deadline: Deadline) -> None:
    if deadline.at is not None:
        return _wait_for(work, lifeline, deadline)  # in the start, which has one
    with lifeline.native():
        try:
            work.wait(group.SLICE)
        except RuntimeError:
            if not work.is_completed():
                # Here the right wait would look at the clock, now and after every further slice.
                bug_canary.triggered(BUG)
            work.wait()
    return None
