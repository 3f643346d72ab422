"""A slice that runs out is taken for the end of the collective.

`Work.wait(timeout)` raises when the time is over; who catches that and goes on has the sum of the ranks that were in
time. A rank that is late by more than a slice makes the others go on with half a sum: wrong tokens, or ranks that
differ and stop.
"""

from __future__ import annotations

import torch.distributed as dist

from engine.clock import Deadline
from engine.lifeline import Lifeline
from engine.parallel import group
from harness.seam import bug_canary

BUG = "C2"


@bug_canary.patch(group, "wait_for")
def _wait_for(work: dist.Work, lifeline: Lifeline, deadline: Deadline) -> None:
    bug_canary.reached(BUG)
    try:
        work.wait(group.SLICE)
    except RuntimeError:
        if work.is_completed():
            work.wait()
        else:
            bug_canary.triggered(BUG)
    lifeline.check(stop=False)
