"""Rank 1 does one operation more than the others before it gathers, as a branch does that only one rank takes."""

from __future__ import annotations

import multiprocessing

import torch

from engine.parallel.group import TensorGroup

_all_gather = TensorGroup.all_gather


def _one_more(self: TensorGroup, tensor: torch.Tensor) -> list[torch.Tensor]:
    self.all_reduce(torch.zeros_like(tensor))
    return _all_gather(self, tensor)


if multiprocessing.current_process().name == "dp0.rank1":
    TensorGroup.all_gather = _one_more  # type: ignore[method-assign]
