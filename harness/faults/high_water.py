"""high_water: the sockets of a link hold very few messages, as an engine does that was set up for less than it gets."""

from __future__ import annotations

from harness.faults.hand import Hand
from harness.faults.settings import InstantFault


class HighWater(
    InstantFault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="high_water", tag_field="kind"
):
    """From ``at`` on each socket of ``link`` that the role binds or connects may hold ``messages`` each way.

    SNDHWM and RCVHWM are set just before the bind or connect, over whatever the engine has chosen; one whose ``before``
    is ``at`` is the first. What lies in the kernel's buffers comes on top. A publisher, and a subscriber with its
    subscriptions, drops what it has no room for; any other sender waits. Fires with the first socket; every socket has
    it until its end.
    """

    link: str
    messages: int = 1

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        return None if self.messages >= 1 else f"messages: {self.messages}; at least 1 (0 would be no limit at all)"

    def strike(self, hand: Hand) -> None:
        hand.adjust_sockets(self.link, "high_water", self.messages)

    def __str__(self) -> str:
        return f"at most {self.messages} messages in the sockets of {self.link} of {self.victim} from {self.at} on"
