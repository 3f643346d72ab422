"""unlink: somebody removes a file of the run, as a cleaner of temporary files or a second engine's start does it.

Who is connected stays so; who connects later finds nobody.
"""

from __future__ import annotations

from harness.faults.hand import Hand
from harness.faults.settings import InstantFault


class Unlink(InstantFault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="unlink", tag_field="kind"):
    """At ``at`` the files of every endpoint of ``link`` are removed, or, of the link ``store``, the store's file.

    Fires only if there was one. Cannot be undone.
    """

    link: str

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        return "at: client:start; there is no file yet" if str(self.at) == "client:start" else None

    def strike(self, hand: Hand) -> None:
        if hand.unlink(self.link):
            hand.fired()

    def __str__(self) -> str:
        return f"remove the files of {self.link} at {self.at}"
