"""Sharded linear layers and vocabulary (Shoeybi et al. 2019, Megatron-LM)."""

from __future__ import annotations

import torch
from torch.nn import functional

from engine.model import weights
from engine.model.config import ModelConfig
from engine.parallel.group import TensorGroup


class ColumnLinear:
    """A matrix split by output: every rank sees all inputs and computes its part of the outputs. No collective."""

    def __init__(self, config: ModelConfig, group: TensorGroup, name: str) -> None:
        self.weight = weights.shard(config, name, 0, group.rank, group.size)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """(rows, in) to (rows, out / size)."""
        return functional.linear(rows, self.weight)


class RowLinear:
    """A matrix split by input: every rank computes a partial sum of all outputs; one all-reduce adds them up."""

    def __init__(self, config: ModelConfig, group: TensorGroup, name: str) -> None:
        self.group = group
        self.weight = weights.shard(config, name, 1, group.rank, group.size)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """(rows, in / size) to (rows, out)."""
        return self.group.all_reduce(functional.linear(rows, self.weight))


class VocabEmbedding:
    """An embedding split by token: a rank looks up its own tokens, others are zero; one all-reduce adds them up."""

    def __init__(self, config: ModelConfig, group: TensorGroup, name: str) -> None:
        self.group = group
        self.weight = weights.shard(config, name, 0, group.rank, group.size)
        self.first = group.rank * self.weight.shape[0]

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """(rows,) token ids to (rows, hidden)."""
        local = tokens - self.first
        foreign = (local < 0) | (local >= self.weight.shape[0])
        rows = functional.embedding(local.masked_fill(foreign, 0), self.weight)
        return self.group.all_reduce(rows.masked_fill(foreign[:, None], 0.0))


class VocabHead:
    """An output head split by token; one all-gather gives every rank all logits, so all take the same argmax."""

    def __init__(self, config: ModelConfig, group: TensorGroup, name: str) -> None:
        self.group = group
        self.weight = weights.shard(config, name, 0, group.rank, group.size)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """(rows, hidden) to (rows, vocab)."""
        return torch.cat(self.group.all_gather(functional.linear(rows, self.weight)), dim=-1)
