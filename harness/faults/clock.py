"""clock: one process's clocks jump at one instant, as after a suspended machine or on a host whose time is wrong."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable

from harness.faults.hand import Hand
from harness.faults.settings import InstantFault


class Clock(InstantFault, frozen=True, forbid_unknown_fields=True, tag="clock", tag_field="kind"):
    """From ``at`` on, ``time.monotonic`` and ``time.time`` of that process show ``seconds`` more, or less.

    Deadlines that it has set before come early then, or late, and what it compares with other processes' times is wrong
    by as much. Ends with the process. Waits inside libraries that read the kernel's clock themselves do not change.
    """

    seconds: float

    @property
    def cost(self) -> float:
        return self.seconds if self.seconds > 0 else math.inf

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        return None if 0 < abs(self.seconds) <= 86400 else f"seconds: {self.seconds} is outside -86400..86400, or 0"

    def strike(self, hand: Hand) -> None:
        hand.fired()
        for name in ("monotonic", "time"):
            setattr(time, name, _later(getattr(time, name), self.seconds))

    def __str__(self) -> str:
        way = "on" if self.seconds > 0 else "back"
        return f"set the clocks of {self.victim} {way} by {abs(self.seconds):g} s at {self.at}"


def _later(clock: Callable[[], float], seconds: float) -> Callable[[], float]:
    @functools.wraps(clock)
    def shifted() -> float:
        return clock() + seconds

    return shifted
