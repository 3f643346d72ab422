"""Prompt embeddings as they travel: rows of the model's hidden size as little-endian bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.messages import PromptEmbeds
from engine.model.config import ModelConfig

Rows = NDArray[np.float32] | NDArray[np.float64]

ITEM_SIZES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of one number, by the name of its type in torch."""


def read(embeds: PromptEmbeds, hidden: int) -> Rows:
    """The rows as (rows, hidden), in float64 if they came so, else in float32, which holds the other types exactly.

    Raises ValueError if `data` is not of that size, KeyError for a type that is not in :data:`ITEM_SIZES`.
    """
    shape = (embeds.rows, hidden)
    if embeds.dtype == "float64":
        return np.frombuffer(embeds.data, "<f8").reshape(shape).astype(np.float64)
    if embeds.dtype == "bfloat16":
        # The upper half of a float32.
        bits = np.frombuffer(embeds.data, "<u2").reshape(shape).astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32)
    kind = {2: "<f2", 4: "<f4"}[ITEM_SIZES[embeds.dtype]]
    return np.frombuffer(embeds.data, kind).reshape(shape).astype(np.float32)


def problem(embeds: PromptEmbeds, model: ModelConfig) -> str | None:
    """Why the model cannot take these rows (there is at least one), or None if it can."""
    if embeds.dtype not in ITEM_SIZES:
        return f"embeds are of type {embeds.dtype!r}, expected one of {', '.join(ITEM_SIZES)}"
    size = embeds.rows * model.hidden * ITEM_SIZES[embeds.dtype]
    if len(embeds.data) != size:
        return (
            f"embeds carry {len(embeds.data)} bytes, expected {size} "
            f"({embeds.rows} rows of the hidden size {model.hidden} in {embeds.dtype})"
        )
    # The comparison is false for not-a-number as well.
    limit = np.finfo(np.float64 if model.dtype == "float64" else np.float32).max
    if not np.abs(read(embeds, model.hidden)).max() <= limit:
        return f"embeds hold a number that is not finite in the model's {model.dtype}"
    return None
