"""Seeded random weights, by name.

A tensor's values depend on the model's seed and the tensor's name alone, so a rank can make the full tensor and keep
its slice: shards are equal to slices of the full model for every number of ranks.
"""

from __future__ import annotations

import functools
import hashlib

import torch

from engine.model.config import ModelConfig


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and full shape of every weight. Matrices are (out, in)."""
    hidden, queries, keys = config.hidden, config.heads * config.head_dim, config.kv_heads * config.head_dim
    table: dict[str, tuple[int, ...]] = {"embedding": (config.vocab, hidden)}
    for layer in range(config.layers):
        table |= {
            f"layers.{layer}.attention_norm": (hidden,),
            f"layers.{layer}.query": (queries, hidden),
            f"layers.{layer}.key": (keys, hidden),
            f"layers.{layer}.value": (keys, hidden),
            f"layers.{layer}.attention_out": (hidden, queries),
            f"layers.{layer}.ffn_norm": (hidden,),
            f"layers.{layer}.gate": (config.ffn, hidden),
            f"layers.{layer}.up": (config.ffn, hidden),
            f"layers.{layer}.down": (hidden, config.ffn),
        }
    return table | {"norm": (hidden,), "head": (config.vocab, hidden)}


@functools.cache
def full(config: ModelConfig, name: str) -> torch.Tensor:
    """The whole tensor `name`, in the model's dtype. Raises KeyError for a name that the model does not have.

    Kept, so that processes forked from one that has made them all share them; seeded random models are small.
    """
    shape = shapes(config)[name]
    digest = hashlib.blake2b(f"{config.name}/{config.seed}/{name}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    values = torch.randn(shape, generator=generator, dtype=getattr(torch, config.dtype))
    if len(shape) == 1:
        return 1.0 + 0.1 * values
    return values if name == "embedding" else values / shape[1] ** 0.5


def forget() -> None:
    """Keep no tensor any longer; whoever asks again gets the same values."""
    full.cache_clear()


def shard(config: ModelConfig, name: str, dim: int, rank: int, size: int) -> torch.Tensor:
    """This rank's slice of the tensor `name` along `dim`."""
    return full(config, name).chunk(size, dim)[rank].contiguous()
