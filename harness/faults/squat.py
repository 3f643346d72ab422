"""squat: another socket binds an engine's address, as a second server with the same socket folder would.

On an ipc path a later bind succeeds and steals the name: who is connected stays so, who connects later reaches the
last binder (relay.md, M17 and W9). On tcp, which this repository's engine does not have, the first keeps it.
"""

from __future__ import annotations

from harness.faults.hand import Hand
from harness.faults.settings import InstantFault


class Squat(InstantFault, frozen=True, forbid_unknown_fields=True, tag="squat", tag_field="kind"):
    """The role of ``at`` binds every address of ``link`` that it has bound once more, to a socket that says nothing.

    At ``LINK.bind`` before the bind it binds the address at hand first: between the pick and the bind. The binder does
    it itself, so that the instant is exact. The squatter is of the same type as the bound socket, lives in a context of
    its own, and ends with the process. Fires only if it got an address; cannot be undone.
    """

    link: str = "relay"

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        if self.at.site in ("start", "exit"):
            return f"at: nothing is bound at {self.at.site}; name {self.link}.bind or an instant after it"
        return None

    def strike(self, hand: Hand) -> None:
        if hand.squat(self.link):
            hand.fired()

    def __str__(self) -> str:
        return f"squat on {self.link} of {self.victim} at {self.at}"
