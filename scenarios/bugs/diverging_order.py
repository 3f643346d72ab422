"""Rank 1 takes the requests of a batch in another order than its peers.

As a scheduler does that walks a set (mini-sglang issue 113): the same members on every rank, and not the same order.
The rows of the batch then belong to different requests on different ranks, and every sum over the ranks mixes them.
Ranks that compare what they did say so after the first such step; ranks that do not answer with wrong tokens.
"""

from __future__ import annotations

import multiprocessing

from engine.scheduler import Scheduler
from engine.sequence import Chunk

_batch = Scheduler.batch


def _reversed(self: Scheduler) -> list[Chunk]:
    return _batch(self)[::-1]


if multiprocessing.current_process().name == "dp0.rank1":
    Scheduler.batch = _reversed  # type: ignore[method-assign]
