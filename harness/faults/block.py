"""block: one thread stands still at one instant while its process goes on, until something else has happened.

With ``until`` it is a rendezvous: an order of two processes' instants, without seconds.
"""

from __future__ import annotations

from harness.faults.hand import Hand
from harness.faults.settings import InstantFault, deadline, ends, longest, wrong_time
from harness.instant import Instant


class Block(InstantFault, frozen=True, forbid_unknown_fields=True, tag="block", tag_field="kind"):
    """The thread that passes ``at`` goes on once a role passes ``until``, or ``or_after`` seconds are over.

    Whichever comes first, or the run's faults are healed: when the workload is over, when the client program has ended,
    or when all that is not blocked sleeps for ever. Where ``until`` is already behind, the thread does not stop at all,
    and the order that was asked for is there.
    """

    until: Instant | None = None
    or_after: float | None = None

    @property
    def cost(self) -> float:
        return longest(self.or_after)

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        if (wrong := wrong_time(self.or_after)) is not None:
            return wrong
        if self.until == self.at:
            return f"until: {self.until} is the instant at which it blocks"
        return None

    def strike(self, hand: Hand) -> None:
        until = deadline(self.or_after)
        hand.fired()
        hand.waits(until)
        hand.await_word(until)
        hand.runs()
        hand.over()

    def __str__(self) -> str:
        return f"block {self.at} {ends(self.until, self.or_after) or 'until faults are healed'}"
