"""Rank 1 takes the requests of a batch in another order than its peers.

As a scheduler does that walks a set (mini-sglang PR #113): the same members on every rank, and not the same order.
The rows of the batch then belong to different requests on different ranks, and every sum over the ranks mixes them.
Ranks that compare what they did say so after the first such step; ranks that do not answer with wrong tokens.
"""

from __future__ import annotations

from engine.scheduler import Scheduler
from engine.sequence import Chunk
from harness.seam import bug_canary

BUG = "C1"

_batch = Scheduler.batch


@bug_canary.patch(Scheduler, "batch", role="dp0.rank1")
def _reversed(self: Scheduler) -> list[Chunk]:
    bug_canary.reached(BUG)
    chunks = _batch(self)
    if len(chunks) > 1:
        bug_canary.triggered(BUG)
    return chunks[::-1]
