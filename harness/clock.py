"""The one place where the harness reads the clock: CLOCK_MONOTONIC, which all processes of one machine share."""

from __future__ import annotations

import time

MS = 1_000_000
"""Nanoseconds in a millisecond."""

SECOND = 1_000_000_000
"""Nanoseconds in a second."""


now = time.monotonic_ns
"""Nanoseconds of CLOCK_MONOTONIC. Not a function of its own: every wrapped call asks for it."""


def wall() -> int:
    """Nanoseconds of CLOCK_REALTIME, for comparing with times that others have armed on that clock."""
    return time.time_ns()


def seconds_since(start: int) -> float:
    """Seconds from ``start`` (nanoseconds) until now."""
    return (time.monotonic_ns() - start) / SECOND


def pause(seconds: float) -> None:
    """Sleeps for ``seconds``."""
    time.sleep(seconds)


def sleep_until(instant: int) -> None:
    """Sleeps until CLOCK_MONOTONIC shows ``instant`` (nanoseconds)."""
    time.sleep(max(0.0, (instant - time.monotonic_ns()) / SECOND))
