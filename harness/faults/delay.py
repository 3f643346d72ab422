"""delay: one process sleeps at one instant, as a slow disk, a cold cache or an unlucky scheduler would make it."""

from __future__ import annotations

from msgspec import Struct

from harness.instant import Instant


class Delay(Struct, frozen=True, forbid_unknown_fields=True, tag="delay", tag_field="kind"):
    """The thread that passes ``at`` sleeps there for ``seconds``. Undone by itself when the time is over."""

    at: Instant
    seconds: float
    optional: bool = False

    @property
    def victim(self) -> str:
        return self.at.role

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        return None if 0 < self.seconds <= 600 else f"seconds: {self.seconds} is outside 0..600"

    def __str__(self) -> str:
        return f"delay {self.at} by {self.seconds:g} s"
