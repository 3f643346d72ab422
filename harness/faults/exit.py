"""exit: one process ends at one instant with an exit code, as a library that calls exit would end it.

No exception is seen and nothing is said to anybody; with code 0 it even looks like a success.
"""

from __future__ import annotations

import os

from harness.faults.hand import Hand
from harness.faults.settings import InstantFault


class Exit(InstantFault, frozen=True, forbid_unknown_fields=True, tag="exit", tag_field="kind"):
    """The process that passes ``at`` ends there with exit code ``code``, without any clean-up. Cannot be undone."""

    code: int = 0

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        if self.at.site == "exit":
            return "at: a process cannot exit at its own exit; name an instant before it"
        return None if 0 <= self.code <= 255 else f"code: {self.code} is outside 0..255"

    def strike(self, hand: Hand) -> None:
        hand.fired()
        os._exit(self.code)

    def __str__(self) -> str:
        return f"end {self.victim} with exit code {self.code} at {self.at}"
