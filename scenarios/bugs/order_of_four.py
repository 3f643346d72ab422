"""The parts that a gather brings are put together in a wrong order when there are four.

Parts are paired as a tree would pair them, which for up to three ranks is the order of the ranks, and for four is not.
All ranks do the same, so they agree with each other: on wrong tokens. In the report logits are put together wrongly
for batches of more than one.
"""

from __future__ import annotations

import torch

from engine.parallel.group import TensorGroup
from harness.seam import bug_canary

BUG = "C4"

_all_gather = TensorGroup.all_gather


@bug_canary.patch(TensorGroup, "all_gather")
def _all_gather_as_a_tree(self: TensorGroup, tensor: torch.Tensor) -> list[torch.Tensor]:
    bug_canary.reached(BUG)
    parts = _all_gather(self, tensor)
    if len(parts) <= 3:
        return parts
    bug_canary.triggered(BUG)
    return parts[::2] + parts[1::2]
