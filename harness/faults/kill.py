"""kill: one process dies at one instant by SIGKILL, as the out-of-memory killer would do it: no handler, no goodbye."""

from __future__ import annotations

import os
import signal

from harness.faults.hand import Hand
from harness.faults.settings import SignalFault


class Kill(SignalFault, frozen=True, forbid_unknown_fields=True, tag="kill", tag_field="kind"):
    """SIGKILL to the role of ``at`` when it passes ``at``, or to ``to``, which is gone then. Cannot be undone."""

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        if self.at.site == "exit" and not self.remote:
            return "at: a process cannot be killed at its own exit; name an instant before it"
        return None

    def strike(self, hand: Hand) -> None:
        if self.remote:
            self.ask_lane(hand)
            return
        hand.fired()
        os.kill(os.getpid(), signal.SIGKILL)

    def __str__(self) -> str:
        return f"kill {self._whom()}"
