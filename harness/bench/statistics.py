"""Statistics of paired rounds: medians, and how far to trust them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import median

_RESAMPLES = 2000


def interval(values: Sequence[float], seed: int = 0, share: float = 0.95) -> tuple[float, float]:
    """The bootstrap interval of the median (percentile method, Efron 1979). Raises ValueError without values."""
    if not values:
        raise ValueError("an interval needs at least one value")
    stream = random.Random(seed)
    medians = sorted(median(stream.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    cut = int((1 - share) / 2 * _RESAMPLES)
    return medians[cut], medians[-1 - cut]
