"""Statistics of repeated runs: medians and shares, and how far to trust them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import NormalDist, median

_RESAMPLES = 2000


def interval(values: Sequence[float], seed: int = 0, share: float = 0.95) -> tuple[float, float]:
    """The bootstrap interval of the median (percentile method, Efron 1979). Raises ValueError without values."""
    if not values:
        raise ValueError("an interval needs at least one value")
    stream = random.Random(seed)
    medians = sorted(median(stream.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    cut = int((1 - share) / 2 * _RESAMPLES)
    return medians[cut], medians[-1 - cut]


def share_interval(hits: int, runs: int, confidence: float = 0.95) -> tuple[float, float]:
    """Between what the true share lies if ``hits`` of ``runs`` were seen (score interval, Wilson 1927).

    Raises ValueError without runs.
    """
    if runs < 1:
        raise ValueError("an interval needs at least one run")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    seen, weight = hits / runs, z * z / runs
    middle = (seen + weight / 2) / (1 + weight)
    spread = z / (1 + weight) * math.sqrt(seen * (1 - seen) / runs + weight / (4 * runs))
    return max(0.0, min(seen, middle - spread)), min(1.0, max(seen, middle + spread))
