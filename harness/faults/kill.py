"""kill: one process dies at one instant by SIGKILL, as the out-of-memory killer would do it: no handler, no goodbye."""

from __future__ import annotations

import math
import os
import signal

from msgspec import Struct

from harness.faults.hand import Hand
from harness.instant import Instant


class Kill(Struct, frozen=True, forbid_unknown_fields=True, tag="kill", tag_field="kind"):
    """The role of ``at`` sends itself SIGKILL when it passes ``at``. Cannot be undone."""

    at: Instant
    optional: bool = False

    @property
    def victim(self) -> str:
        return self.at.role

    @property
    def cost(self) -> float:
        return math.inf

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        if self.at.site == "exit":
            return "at: a process cannot be killed at its own exit; name an instant before it"
        return None

    def strike(self, hand: Hand) -> None:
        hand.fired()
        os.kill(os.getpid(), signal.SIGKILL)

    def __str__(self) -> str:
        return f"kill {self.victim} at {self.at}"
