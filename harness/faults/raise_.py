"""raise: a library call ends with an exception that nobody expects there, as a bug or a full disk would make it end."""

from __future__ import annotations

from harness.faults.hand import Hand
from harness.faults.settings import InstantFault


class InjectedError(RuntimeError):
    """What a `raise` fault raises; the message names the fault."""


class Raise(InstantFault, frozen=True, forbid_unknown_fields=True, tag="raise", tag_field="kind"):
    """`InjectedError` comes out of the wrapped call at ``at``: instead of the call (before) or after it has succeeded.

    Cannot be undone; what becomes of it is up to the code that made the call.
    """

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        if self.at.site == "exit":
            return "at: nothing can be raised at a process's own exit; name an instant before it"
        return None

    def strike(self, hand: Hand) -> None:
        hand.fired()
        raise InjectedError(f"injected fault: {self}")

    def __str__(self) -> str:
        return f"raise an error in {self.victim} at {self.at}"
