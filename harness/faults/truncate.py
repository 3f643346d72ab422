"""truncate: the end of a frame is missing, as a sender that was interrupted while it wrote would send it."""

from __future__ import annotations

from harness.faults.frames import FrameFault
from harness.proxy.records import FrameRule


class Truncate(FrameFault, frozen=True, forbid_unknown_fields=True, tag="truncate", tag_field="kind"):
    """Of the last part of the ``nth`` message of kind ``frame`` only the first ``keep`` bytes arrive.

    The framing stays whole, so the receiver gets a shorter message; one that is no longer than that stays as it is.
    Cannot be undone.
    """

    keep: int = 0

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        return super().complaint() or (None if self.keep >= 0 else f"keep: {self.keep}; 0 bytes or more")

    def rule(self, index: int, kind: str) -> FrameRule:
        """What the proxy does; ``kind`` is the target's word for ``frame``."""
        return self._rule("truncate", index, kind, keep=self.keep)

    def __str__(self) -> str:
        return f"truncate {self._frames()} to {self.keep} bytes"
