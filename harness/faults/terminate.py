"""terminate: one process gets a signal that it may handle, as a supervisor, a keyboard or a failed check sends it."""

from __future__ import annotations

import os
import resource
import signal as signals
from typing import Literal

from harness.faults.hand import Hand
from harness.faults.settings import InstantFault


class Terminate(InstantFault, frozen=True, forbid_unknown_fields=True, tag="terminate", tag_field="kind"):
    """The role of ``at`` sends itself SIGTERM, SIGINT or SIGABRT when it passes ``at``. Cannot be undone.

    A role may handle or ignore the signal and live; then nothing was ended.
    """

    signal: Literal["TERM", "INT", "ABRT"] = "TERM"

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        if self.at.site == "exit":
            return "at: a process cannot be terminated at its own exit; name an instant before it"
        return None

    def strike(self, hand: Hand) -> None:
        hand.fired()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # SIGABRT would leave an image of a whole rank behind
        os.kill(os.getpid(), signals.Signals[f"SIG{self.signal}"])

    def __str__(self) -> str:
        return f"send SIG{self.signal} to {self.victim} at {self.at}"
