"""full_disk: the file system of the engine's folder is full, down to the last byte and the last name."""

from __future__ import annotations

from harness.faults.hand import Hand
from harness.faults.settings import InstantFault
from harness.instant import Instant


class FullDisk(InstantFault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="full_disk", tag_field="kind"):
    """At ``at`` the file system on which the engine's folder lies is filled, and is so until faults are healed.

    For this the folder is a small file system of its own, which only root can make; it is gone with the run.
    """

    at: Instant = Instant("client", "start")

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        return f"at: {self.at}; nothing is written there any more" if self.at.site == "exit" else None

    def strike(self, hand: Hand) -> None:
        if hand.fill_disk():
            hand.fired()

    def __str__(self) -> str:
        return f"the disk is full from {self.at} on"
