"""The paged key-value cache of one rank (Kwon et al. 2023), and where a step's rows stand in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.sequence import Chunk


@dataclass(frozen=True, slots=True)
class Span:
    """One chunk in a step: its rows of the batch, its pages, and how many tokens they hold at the step's end."""

    first: int
    last: int
    pages: torch.Tensor
    length: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A step's rows: `positions` in their sequences, `slots` in the cache, both (rows,), and the span of each chunk.

    `sampled` are the rows after which a token is drawn.
    """

    positions: torch.Tensor
    slots: torch.Tensor
    spans: list[Span]
    sampled: list[int]

    @classmethod
    def of(cls, chunks: Sequence[Chunk], page_size: int) -> Layout:
        """The layout of these chunks, one after another."""
        positions: list[int] = []
        slots: list[int] = []
        spans: list[Span] = []
        sampled: list[int] = []
        for chunk in chunks:
            first = len(positions)
            for position in range(chunk.start, chunk.end):
                page, offset = divmod(position, page_size)
                positions.append(position)
                slots.append(chunk.pages[page] * page_size + offset)
            spans.append(Span(first, len(positions), torch.tensor(chunk.pages), chunk.end))
            if chunk.sampled:
                sampled.append(len(positions) - 1)
        return cls(torch.tensor(positions), torch.tensor(slots), spans, sampled)


class KVCache:
    """One buffer (layers, 2, pages, page_size, kv_heads, head_dim) for the keys and values of all requests.

    `kv_heads` are this rank's. Memory that no token was written to is never touched: it costs nothing and holds
    anything, so nothing behind a request's length may be read.
    """

    def __init__(
        self, layers: int, pages: int, page_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> None:
        self.page_size = page_size
        self.buffer = torch.empty(layers, 2, pages, page_size, kv_heads, head_dim, dtype=dtype)
        # Page boundaries do not matter to a write: a slot is a token's place in the row of all pages.
        self._slots = self.buffer.flatten(2, 3)

    def write(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Scatter (rows, kv_heads, head_dim) keys and values to their slots, one for each row."""
        self._slots[layer, 0].index_copy_(0, slots, keys)
        self._slots[layer, 1].index_copy_(0, slots, values)

    def read(self, layer: int, span: Span) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather a request's keys and values, (length, kv_heads, head_dim) each."""
        both = self.buffer[layer].index_select(1, span.pages).flatten(1, 2)
        return both[0, : span.length], both[1, : span.length]
