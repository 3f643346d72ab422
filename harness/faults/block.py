"""block: one thread stands still at one instant while its process goes on, until something else has happened.

With ``until`` it is a rendezvous: an order of two processes' instants, without seconds.
"""

from __future__ import annotations

import math

from harness.clock import SECOND, now
from harness.faults.hand import Hand
from harness.faults.settings import InstantFault
from harness.instant import Instant


class Block(InstantFault, frozen=True, forbid_unknown_fields=True, tag="block", tag_field="kind"):
    """The thread that passes ``at`` goes on once a role passes ``until``, or ``or_after`` seconds are over.

    Whichever comes first, or the run's faults are healed: when the client program has ended, or when all that is not
    blocked sleeps for ever. Where ``until`` is already behind, the thread does not stop at all, and the order that was
    asked for is there.
    """

    until: Instant | None = None
    or_after: float | None = None

    @property
    def cost(self) -> float:
        return math.inf if self.or_after is None else self.or_after

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        if self.or_after is not None and not 0 < self.or_after <= 600:
            return f"or_after: {self.or_after} is outside 0..600 seconds"
        if self.until == self.at:
            return f"until: {self.until} is the instant at which it blocks"
        return None

    def strike(self, hand: Hand) -> None:
        until = -1 if self.or_after is None else now() + int(self.or_after * SECOND)
        hand.fired()
        hand.waits(until)
        hand.await_word(until)
        hand.runs()
        hand.over()

    def __str__(self) -> str:
        ends = [f"until {self.until}"] if self.until else []
        ends += [f"for {self.or_after:g} s"] if self.or_after is not None else []
        return f"block {self.at} {' or '.join(ends) or 'until faults are healed'}"
