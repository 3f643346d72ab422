"""One rank's shard of a Llama-type decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

The batch is flattened: the rows of all requests of a step stand in one matrix, whole prompts and single decode tokens
side by side; attention alone is computed request by request. Collectives of one forward pass, in order: one all-reduce
(embedding), two per layer (attention output, feed-forward), one all-gather (logits).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from engine.model import weights
from engine.model.cache import KVCache
from engine.model.config import ModelConfig
from engine.parallel.group import TensorGroup
from engine.parallel.layers import ColumnLinear, RowLinear, VocabEmbedding, VocabHead


@dataclass(frozen=True, slots=True)
class Chunk:
    """The rows of one request in a step: the tokens that follow what its cache already holds."""

    token_ids: list[int]
    cache: KVCache


class Layer:
    """One decoder layer's shard."""

    def __init__(self, config: ModelConfig, group: TensorGroup, index: int) -> None:
        self.index = index
        self.config = config
        self.heads = config.heads // group.size
        self.kv_heads = config.kv_heads // group.size
        name = f"layers.{index}"
        self.attention_norm = weights.full(config, f"{name}.attention_norm")
        self.query = ColumnLinear(config, group, f"{name}.query")
        self.key = ColumnLinear(config, group, f"{name}.key")
        self.value = ColumnLinear(config, group, f"{name}.value")
        self.attention_out = RowLinear(config, group, f"{name}.attention_out")
        self.ffn_norm = weights.full(config, f"{name}.ffn_norm")
        self.gate = ColumnLinear(config, group, f"{name}.gate")
        self.up = ColumnLinear(config, group, f"{name}.up")
        self.down = RowLinear(config, group, f"{name}.down")

    def forward(self, rows: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor], chunks: list[Chunk]) -> torch.Tensor:
        """(rows, hidden) to (rows, hidden)."""
        rows = rows + self._attend(rms_norm(rows, self.attention_norm, self.config.norm_eps), rope, chunks)
        inner = rms_norm(rows, self.ffn_norm, self.config.norm_eps)
        return rows + self.down(functional.silu(self.gate(inner)) * self.up(inner))

    def _attend(self, rows: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor], chunks: list[Chunk]) -> torch.Tensor:
        dim = self.config.head_dim
        queries = rotate(self.query(rows).view(-1, self.heads, dim), rope)
        keys = rotate(self.key(rows).view(-1, self.kv_heads, dim), rope)
        values = self.value(rows).view(-1, self.kv_heads, dim)
        mixed = torch.empty(rows.shape[0], self.heads * dim, dtype=rows.dtype)
        start = 0
        for chunk in chunks:
            end = start + len(chunk.token_ids)
            all_keys, all_values = chunk.cache.store(self.index, keys[start:end], values[start:end])
            mixed[start:end] = attention(queries[start:end], all_keys, all_values)
            start = end
        return self.attention_out(mixed)


class Llama:
    """One rank's shard of the whole decoder."""

    def __init__(self, config: ModelConfig, group: TensorGroup) -> None:
        self.config = config
        self.group = group
        self.dtype: torch.dtype = getattr(torch, config.dtype)
        self.embedding = VocabEmbedding(config, group, "embedding")
        self.layers = [Layer(config, group, index) for index in range(config.layers)]
        self.norm = weights.full(config, "norm")
        self.head = VocabHead(config, group, "head")
        self.rope = rope_table(config)

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache for one request of up to `capacity` tokens."""
        config = self.config
        return KVCache(config.layers, capacity, config.kv_heads // self.group.size, config.head_dim, self.dtype)

    def forward(self, chunks: list[Chunk]) -> list[int]:
        """Run one step and fill the caches; the greedy next token of each chunk. All ranks get the same tokens."""
        tokens = torch.tensor([token for chunk in chunks for token in chunk.token_ids])
        positions = torch.tensor([chunk.cache.length + i for chunk in chunks for i in range(len(chunk.token_ids))])
        rope = (self.rope[0][positions], self.rope[1][positions])
        rows = self.embedding(tokens)
        for layer in self.layers:
            rows = layer.forward(rows, rope, chunks)
        ends = torch.tensor([len(chunk.token_ids) for chunk in chunks]).cumsum(0) - 1
        logits = self.head(rms_norm(rows[ends], self.norm, self.config.norm_eps))
        for chunk in chunks:
            chunk.cache.advance(len(chunk.token_ids))
        return [int(token) for token in logits.argmax(dim=-1)]


def rms_norm(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root-mean-square normalisation over the last dimension (Zhang and Sennrich 2019)."""
    return rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps) * weight


def rope_table(config: ModelConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of the rotary angles (Su et al. 2021), each (max_length, head_dim / 2)."""
    dtype = getattr(torch, config.dtype)
    exponents = torch.arange(0, config.head_dim, 2, dtype=dtype) / config.head_dim
    angles = torch.outer(torch.arange(config.max_length, dtype=dtype), config.rope_theta**-exponents)
    return angles.cos(), angles.sin()


def rotate(heads: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Apply rotary positions to (rows, heads, head_dim); the two halves of a head form the rotated pairs."""
    cos, sin = rope[0][:, None, :], rope[1][:, None, :]
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def attention(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Causal grouped-query attention of the last n of m tokens of one request.

    queries (n, heads, dim), keys and values (m, kv_heads, dim); returns (n, heads * dim).
    """
    count, heads, dim = queries.shape
    total, kv_heads = keys.shape[:2]
    grouped = queries.view(count, kv_heads, heads // kv_heads, dim)
    scores = torch.einsum("nkgd,mkd->kgnm", grouped, keys) / dim**0.5
    hidden = torch.arange(total) > torch.arange(total - count, total)[:, None]
    shares = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("kgnm,mkd->nkgd", shares, values).reshape(count, heads * dim)
