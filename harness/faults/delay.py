"""delay: one process sleeps at one instant, as a slow disk, a cold cache or an unlucky scheduler would make it."""

from __future__ import annotations

from harness.clock import SECOND, now, sleep_until
from harness.faults.hand import Hand
from harness.faults.settings import InstantFault


class Delay(InstantFault, frozen=True, forbid_unknown_fields=True, tag="delay", tag_field="kind"):
    """The thread that passes ``at`` sleeps there for ``seconds``. Undone by itself when the time is over."""

    seconds: float

    @property
    def cost(self) -> float:
        return self.seconds

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        return None if 0 < self.seconds <= 600 else f"seconds: {self.seconds} is outside 0..600"

    def strike(self, hand: Hand) -> None:
        until = now() + int(self.seconds * SECOND)
        hand.fired()
        hand.waits(until)
        sleep_until(until)
        hand.runs()

    def __str__(self) -> str:
        return f"delay {self.at} by {self.seconds:g} s"
