"""terminate: one process gets a signal that it may handle, as a supervisor, a keyboard or a failed check sends it."""

from __future__ import annotations

import os
import resource
import signal as signals
from typing import Literal

from harness.faults.hand import Hand
from harness.faults.settings import SignalFault


class Terminate(SignalFault, frozen=True, forbid_unknown_fields=True, tag="terminate", tag_field="kind"):
    """SIGTERM, SIGINT, SIGHUP or SIGABRT to the role of ``at`` when it passes ``at``, or to ``to``. Cannot be undone.

    A role may handle or ignore the signal and live; then nothing was ended. Two of them, the second at an instant of
    the tear-down, are the impatient supervisor.
    """

    signal: Literal["TERM", "INT", "HUP", "ABRT"] = "TERM"

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        if self.at.site == "exit" and not self.remote:
            return "at: a process cannot be terminated at its own exit; name an instant before it"
        return None

    def strike(self, hand: Hand) -> None:
        if self.remote:
            self.ask_lane(hand)
            return
        hand.fired()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # SIGABRT would leave an image of a whole rank behind
        os.kill(os.getpid(), self.number)

    @property
    def number(self) -> int:
        """The signal's number."""
        return signals.Signals[f"SIG{self.signal}"]

    def __str__(self) -> str:
        return f"send SIG{self.signal} to {self._whom()}"
