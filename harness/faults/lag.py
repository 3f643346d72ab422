"""lag: frames arrive later than they were sent, in their order, as over a link with latency."""

from __future__ import annotations

from harness.faults.frames import FramesFault
from harness.proxy.records import FrameRule


class Lag(FramesFault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="lag", tag_field="kind"):
    """The ``nth`` frame of kind ``frame``, and the ``count - 1`` after it, each arrive ``seconds`` later.

    Frames of other kinds behind them wait with them, so the order is kept. They arrive even if the sender has ended
    meanwhile. Undone by itself.
    """

    seconds: float

    @property
    def cost(self) -> float:
        return self.seconds * self.count

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        if (wrong := super().complaint()) is not None:
            return wrong
        return None if 0 < self.seconds <= 600 else f"seconds: {self.seconds} is outside 0..600"

    def rule(self, index: int, kind: str) -> FrameRule:
        """What the proxy does; ``kind`` is the target's word for ``frame``."""
        return self._rule("lag", index, kind, after=self.seconds)

    def __str__(self) -> str:
        return f"lag {self._frames()} by {self.seconds:g} s"
