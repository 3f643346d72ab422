"""restart: one process is killed and a second one begins in its place, as a supervisor starts a dead worker again.

It has the same role's code, the same arguments and the same descriptors: to its peers it is the one that has died.
"""

from __future__ import annotations

from harness.faults.hand import Hand
from harness.faults.settings import SignalFault

AGAIN = ".again"
"""Behind a role: the process that has taken the place of it."""


class Restart(SignalFault, frozen=True, forbid_unknown_fields=True, tag="restart", tag_field="kind"):
    """The role of ``at``, or ``to``, is killed when ``at`` is passed, and started again at once. Cannot be undone.

    The second process is called as the first, with ``.again`` behind it; no fault of the plan is for it.
    """

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        if self.victim == "client":
            return "to: the client program cannot be started again; name a rank"
        if self.at.site == "exit" and not self.remote:
            return "at: a process cannot be killed at its own exit; name an instant before it"
        return None

    def strike(self, hand: Hand) -> None:
        self.ask_lane(hand)

    def __str__(self) -> str:
        return f"kill and restart {self._whom()}"
