"""Durations as people type them: 60, 90s, 5m, 1h."""

from __future__ import annotations

import math
import re

_TEXT = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[smh]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


class DurationError(ValueError):
    """A text that is no duration; one clear sentence."""


def parse_seconds(text: str) -> float:
    """Seconds of a duration. Raises DurationError."""
    match = _TEXT.fullmatch(text.strip())
    seconds = float(match["number"]) * _SECONDS[match["unit"]] if match else math.nan
    if not seconds > 0:
        raise DurationError(f"'{text}' is not a time; expected more than nothing, as 60, 90s, 5m or 1h")
    return seconds
