"""slow: one direction of a connection carries few bytes a second, as a congested link or a slow disk behind it."""

from __future__ import annotations

from harness.faults.frames import FrameFault
from harness.proxy.records import FrameRule


class Slow(FrameFault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="slow", tag_field="kind"):
    """From the ``nth`` frame of kind ``frame`` on, its direction of its connection carries ``rate`` bytes a second.

    Until the run's faults are healed. What the sender sends faster fills its buffers.
    """

    rate: int

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        return super().complaint() or (None if self.rate >= 1 else f"rate: {self.rate}; at least 1 byte a second")

    def rule(self, index: int, kind: str) -> FrameRule:
        """What the proxy does; ``kind`` is the target's word for ``frame``."""
        return self._rule("slow", index, kind, rate=self.rate)

    def __str__(self) -> str:
        which = f"{self.frame} #{self.nth} of {self.victim}{self._only()}"
        return f"slow {self.link} to {self.rate} bytes/s from {which} on"
