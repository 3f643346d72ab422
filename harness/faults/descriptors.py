"""descriptors: one process can open nothing any more from one instant on: EMFILE, as after a leak."""

from __future__ import annotations

import os
import resource

from harness.faults.hand import Hand
from harness.faults.settings import LimitFault


class Descriptors(LimitFault, frozen=True, forbid_unknown_fields=True, tag="descriptors", tag_field="kind"):
    """From ``at`` on, that process can open ``left`` more descriptors at most. Undone when faults are healed."""

    left: int = 0

    limit = resource.RLIMIT_NOFILE

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        return None if 0 <= self.left <= 1000 else f"left: {self.left} is outside 0..1000"

    def strike(self, hand: Hand) -> None:
        hand.tell_lane()
        hand.fired()
        # The kernel gives the lowest number that is free, and none that is not below the limit.
        free = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(self.left + 1)]
        for number in free:
            os.close(number)
        self.lower(free[-1])

    def __str__(self) -> str:
        return f"leave {self.victim} {self.left} descriptors at {self.at}"
