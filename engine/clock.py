"""The one place that reads the clock.

All times are seconds on the machine's monotonic clock, which every process of one machine shares: an absolute
:class:`Deadline` made by the launcher means the same instant in every rank.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

LONGEST_POLL = 86_400_000
"""Milliseconds of the longest single poll: the system counts them in 32 bits. Whoever waits longer polls again."""


def now() -> float:
    """Seconds on the monotonic clock."""
    return time.monotonic()


@dataclass(frozen=True, slots=True)
class Deadline:
    """An absolute instant, or never (`at` is None)."""

    at: float | None

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        """The instant `seconds` from now; None gives a deadline that never comes."""
        return cls(None if seconds is None else now() + seconds)

    @classmethod
    def never(cls) -> Deadline:
        return cls(None)

    def remaining(self) -> float | None:
        """Seconds left, never negative; None if it never comes."""
        return None if self.at is None else max(0.0, self.at - now())

    def remaining_ms(self) -> int | None:
        """Milliseconds left for a poll call, rounded up so that a poll never wakes just before the instant.

        At most :data:`LONGEST_POLL`, so a poll that found nothing does not mean that the instant has come.
        """
        left = self.remaining()
        return None if left is None else int(min(left * 1000, LONGEST_POLL - 1)) + 1

    def expired(self) -> bool:
        return self.at is not None and now() >= self.at

    def sooner(self, other: Deadline) -> Deadline:
        """The earlier of the two."""
        if self.at is None:
            return other
        if other.at is None:
            return self
        return self if self.at <= other.at else other

    def later_by(self, seconds: float) -> Deadline:
        """The same deadline with a margin of `seconds` after it."""
        return self if self.at is None else Deadline(self.at + seconds)
