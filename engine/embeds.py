"""Prompt embeddings as they arrive: one row of the model's hidden size for each token."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.codec import Array
from engine.model.config import ModelConfig

Rows = NDArray[np.float32] | NDArray[np.float64]

DTYPES = ("float64", "float32", "float16", "bfloat16")
"""The types of numbers that embeddings may have, as torch names them."""


def read(embeds: Array) -> Rows:
    """The rows as they are if they are of float64, else in float32, which holds the other types exactly."""
    rows = embeds.numpy()
    return rows.astype(np.float64) if embeds.dtype == "float64" else rows.astype(np.float32)


def problem(embeds: Array, model: ModelConfig) -> str | None:
    """Why the model cannot take these rows (there is at least one), or None if it can."""
    if embeds.dtype not in DTYPES:
        return f"embeds are of type {embeds.dtype}, expected one of {', '.join(DTYPES)}"
    if len(embeds.shape) != 2 or embeds.shape[1] != model.hidden:
        return f"embeds are of shape {list(embeds.shape)}, expected rows of the hidden size {model.hidden}"
    # The comparison is false for not-a-number as well.
    limit = np.finfo(np.float64 if model.dtype == "float64" else np.float32).max
    if not np.abs(read(embeds)).max() <= limit:
        return f"embeds hold a number that is not finite in the model's {model.dtype}"
    return None
