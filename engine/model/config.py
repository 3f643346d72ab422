"""Shapes of the models that can run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shapes of one Llama-type decoder.

    `dtype` is the type of weights and arithmetic. Sharding and batching change the order in which floating-point sums
    are taken; a model whose greedy tokens must be equal for every shard count wants `float64`, where a near tie that
    could flip is out of reach.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    max_length: int
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    dtype: str = "float32"
    seed: int = 0

    def divides(self, size: int) -> bool:
        """Whether the model can be sharded over `size` ranks."""
        return size >= 1 and all(n % size == 0 for n in (self.heads, self.kv_heads, self.ffn, self.vocab))

    def tp_sizes(self) -> list[int]:
        """All numbers of ranks that the model can be sharded over."""
        return [size for size in range(1, self.kv_heads + 1) if self.divides(size)]


TINY = ModelConfig(
    name="tiny",
    hidden=96,
    layers=2,
    heads=24,
    kv_heads=12,
    head_dim=8,
    ffn=192,
    vocab=384,
    max_length=512,
    dtype="float64",
)

MODELS = {TINY.name: TINY}
