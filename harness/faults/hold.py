"""hold: a frame, and all behind it on its way, waits in the proxy; the slow joiner on demand is a held SUBSCRIBE."""

from __future__ import annotations

import math

from harness.faults.settings import FrameFault
from harness.instant import Instant
from harness.proxy.records import FrameRule


class Hold(FrameFault, frozen=True, forbid_unknown_fields=True, tag="hold", tag_field="kind"):
    """Keeps the ``nth`` frame of kind ``frame`` back until a role passes ``until`` or ``or_after`` seconds are over.

    Whichever comes first releases; with neither, the frame stays until the run's faults are healed. The order of the
    frames on the connection is kept.
    """

    until: Instant | None = None
    or_after: float | None = None

    @property
    def cost(self) -> float:
        return math.inf if self.or_after is None else self.or_after

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        if (wrong := super().complaint()) is not None:
            return wrong
        if self.or_after is not None and not 0 < self.or_after <= 600:
            return f"or_after: {self.or_after} is outside 0..600 seconds"
        return None

    def rule(self, index: int, kind: str) -> FrameRule:
        """What the proxy does; ``kind`` is the target's word for ``frame``."""
        return FrameRule(
            index,
            "hold",
            self.link,
            self.victim,
            kind,
            self.nth,
            after=self.or_after,
            until_signal=self.until is not None,
        )

    def __str__(self) -> str:
        ends = [f"until {self.until}"] if self.until else []
        ends += [f"for {self.or_after:g} s"] if self.or_after is not None else []
        return f"hold {self.frame} #{self.nth} of {self.victim} on {self.link} {' or '.join(ends)}".rstrip()
