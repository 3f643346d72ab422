"""Keys and values of one request, kept between steps."""

from __future__ import annotations

import torch


class KVCache:
    """Room for the keys and values of up to `capacity` tokens on this rank; `length` of them are filled."""

    def __init__(self, layers: int, capacity: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        self.keys = torch.zeros(layers, capacity, kv_heads, head_dim, dtype=dtype)
        self.values = torch.zeros(layers, capacity, kv_heads, head_dim, dtype=dtype)
        self.length = 0

    def store(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Append (n, kv_heads, head_dim) keys and values of the tokens after `length`; return all keys and values.

        `length` moves once per step, by :meth:`advance`, because every layer appends at the same place.
        """
        end = self.length + keys.shape[0]
        self.keys[layer, self.length : end] = keys
        self.values[layer, self.length : end] = values
        return self.keys[layer, :end], self.values[layer, :end]

    def advance(self, count: int) -> None:
        """`count` more tokens are stored in every layer."""
        self.length += count
