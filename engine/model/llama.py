"""One rank's shard of a Llama-type decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

The batch is flattened: the rows of all requests of a step stand in one matrix, whole prompts and single decode tokens
side by side; attention alone is computed request by request. Collectives of one forward pass, in order: one all-reduce
(embedding), two per layer (attention output, feed-forward), and, if any token is to be drawn, one all-gather (logits).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import torch
from torch.nn import functional

from engine.model import weights
from engine.model.cache import KVCache, Layout
from engine.model.config import ModelConfig
from engine.parallel.group import TensorGroup
from engine.parallel.layers import ColumnLinear, RowLinear, VocabEmbedding, VocabHead
from engine.sequence import Chunk

Rope = tuple[torch.Tensor, torch.Tensor]


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

    def tensors(self) -> list[torch.Tensor]:
        """All tensors of the layer."""
        inner = (self.query, self.key, self.value, self.attention_out, self.gate, self.up, self.down)
        return [self.attention_norm, self.ffn_norm, *(linear.weight for linear in inner)]

    def forward(self, rows: torch.Tensor, rope: Rope, layout: Layout, cache: KVCache) -> torch.Tensor:
        """(rows, hidden) to (rows, hidden)."""
        rows = rows + self._attend(rms_norm(rows, self.attention_norm, self.config.norm_eps), rope, layout, cache)
        inner = rms_norm(rows, self.ffn_norm, self.config.norm_eps)
        return rows + self.down(functional.silu(self.gate(inner)) * self.up(inner))

    def _attend(self, rows: torch.Tensor, rope: Rope, layout: Layout, cache: KVCache) -> torch.Tensor:
        dim = self.config.head_dim
        queries = rotate(self.query(rows).view(-1, self.heads, dim), rope)
        keys = rotate(self.key(rows).view(-1, self.kv_heads, dim), rope)
        cache.write(self.index, layout.slots, keys, self.value(rows).view(-1, self.kv_heads, dim))
        mixed = [attention(queries[span.first : span.last], *cache.read(self.index, span)) for span in layout.spans]
        return self.attention_out(torch.cat(mixed))


class Llama:
    """One rank's shard of the whole decoder."""

    checksum = 0
    """CRC-32 of the rows of the latest step that the logits were made of. They are sums over all ranks, so they are the
    same bits on each, unless a rank's part of a collective was not the one that the others took it for."""

    def __init__(self, config: ModelConfig, group: TensorGroup) -> None:
        self.config = config
        self.group = group
        self.dtype: torch.dtype = getattr(torch, config.dtype)
        self.rope = rope_table(config)
        self.load()

    def load(self) -> None:
        """Make the weights, which are the same every time."""
        config, group = self.config, self.group
        self.embedding = VocabEmbedding(config, group, "embedding")
        self.layers = [Layer(config, group, index) for index in range(config.layers)]
        self.norm = weights.full(config, "norm")
        self.head = VocabHead(config, group, "head")

    def unload(self) -> None:
        """Give back the memory of the weights. Nothing can be computed until they are loaded again."""
        del self.embedding, self.layers, self.norm, self.head
        weights.forget()

    def tensors(self) -> Iterator[torch.Tensor]:
        """All tensors of a shard that is loaded."""
        yield from (self.embedding.weight, self.norm, self.head.weight)
        for layer in self.layers:
            yield from layer.tensors()

    def new_cache(self, pages: int, page_size: int) -> KVCache:
        """An empty cache for this rank's heads."""
        config = self.config
        return KVCache(config.layers, pages, page_size, config.kv_heads // self.group.size, config.head_dim, self.dtype)

    def forward(self, chunks: Sequence[Chunk], cache: KVCache) -> torch.Tensor:
        """Run one step and fill the cache; the logits (n, vocab) after those n chunks that are sampled.

        All ranks get the same bits: the logits are gathered, not computed, by each.
        """
        layout = Layout.of(chunks, cache.page_size)
        rope = (self.rope[0][layout.positions], self.rope[1][layout.positions])
        rows = self._embed(chunks, layout)
        for layer in self.layers:
            rows = layer.forward(rows, rope, layout, cache)
        if not layout.sampled:
            self.checksum = 0
            return rows.new_empty(0, self.config.vocab)
        rows = rows[layout.sampled]
        self.checksum = zlib.crc32(rows.view(torch.uint8).numpy().data)
        return self.head(rms_norm(rows, self.norm, self.config.norm_eps))

    def _embed(self, chunks: Sequence[Chunk], layout: Layout) -> torch.Tensor:
        """Token embeddings, and the prompt's own rows where it came as such.

        Every rank has all of the latter, so they are put in after the all-reduce and not summed.
        """
        rows = self.embedding(torch.tensor([token for chunk in chunks for token in chunk.token_ids]))
        for chunk, span in zip(chunks, layout.spans, strict=True):
            if chunk.rows is not None:
                rows[span.first : span.last] = torch.from_numpy(chunk.rows).to(self.dtype)
        return rows


def rms_norm(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root-mean-square normalisation over the last dimension (Zhang and Sennrich 2019)."""
    return rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps) * weight


def rope_table(config: ModelConfig) -> Rope:
    """Cosine and sine of the rotary angles (Su et al. 2021), each (max_length, head_dim / 2)."""
    dtype = getattr(torch, config.dtype)
    exponents = torch.arange(0, config.head_dim, 2, dtype=dtype) / config.head_dim
    angles = torch.outer(torch.arange(config.max_length, dtype=dtype), config.rope_theta**-exponents)
    return angles.cos(), angles.sin()


def rotate(heads: torch.Tensor, rope: Rope) -> torch.Tensor:
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
    shared = heads // kv_heads
    # One product per key-value head, with the rows of all query heads that share it.
    grouped = queries.view(count, kv_heads, shared, dim).permute(1, 2, 0, 3).reshape(kv_heads, -1, dim)
    scores = torch.bmm(grouped, keys.permute(1, 2, 0)) / dim**0.5
    if count > 1:  # a single token sees all that is there
        hidden = torch.arange(total) > torch.arange(total - count, total)[:, None]
        scores.view(kv_heads, shared, count, total).masked_fill_(hidden, float("-inf"))
    mixed = torch.bmm(scores.softmax(-1), values.transpose(0, 1))
    return mixed.view(kv_heads, shared, count, dim).permute(2, 0, 1, 3).reshape(count, heads * dim)
