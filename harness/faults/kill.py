"""kill: one process dies at one instant by SIGKILL, as the out-of-memory killer would do it: no handler, no goodbye."""

from __future__ import annotations

import os
import signal

from harness.faults.hand import Hand
from harness.faults.settings import InstantFault


class Kill(InstantFault, frozen=True, forbid_unknown_fields=True, tag="kill", tag_field="kind"):
    """The role of ``at`` sends itself SIGKILL when it passes ``at``. Cannot be undone."""

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
