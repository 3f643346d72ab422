"""A collective that is not over after a slice is issued again.

Retrying is right for a request and wrong for a collective: the ranks match collectives by their order, so the rank that
issues one twice is from then on one ahead of the others, and every later sum is of different things.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist

from engine.clock import Deadline
from engine.lifeline import Lifeline
from engine.parallel import group
from engine.parallel.group import TensorGroup
from harness.seam import bug_canary

BUG = "C3"

_run = TensorGroup._run
_wait_for = group.wait_for
_started: list[Callable[[], dist.Work | None]] = []


@bug_canary.patch(TensorGroup, "_run")
def _run_and_remember(self: TensorGroup, name: str, start: Callable[[], dist.Work | None]) -> None:
    bug_canary.reached(BUG)
    _started[:] = [start]
    _run(self, name, start)


@bug_canary.patch(group, "wait_for")
def _wait_and_retry(work: dist.Work, lifeline: Lifeline, deadline: Deadline) -> None:
    try:
        work.wait(group.SLICE)
        return
    except RuntimeError:
        if not work.is_completed():
            bug_canary.triggered(BUG)
            work = _started[0]() or work
    _wait_for(work, lifeline, deadline)
