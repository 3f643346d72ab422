"""duplicate: whole frames come twice, as a sender that repeats what it takes for lost would send them."""

from __future__ import annotations

import math

from msgspec import Struct

from harness.proxy.records import FrameRule


class Duplicate(Struct, frozen=True, forbid_unknown_fields=True, tag="duplicate", tag_field="kind"):
    """The ``nth`` frame of kind ``frame``, and the ``count - 1`` after it, are each passed on twice in a row.

    They are those between ``victim`` and the link's binder. Cannot be undone.
    """

    link: str
    frame: str
    victim: str
    nth: int = 1
    count: int = 1
    optional: bool = False

    @property
    def cost(self) -> float:
        return math.inf

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        if self.nth < 1:
            return f"nth: {self.nth}; frames count from 1"
        return None if self.count >= 1 else f"count: {self.count}; at least 1"

    def rule(self, index: int, kind: str) -> FrameRule:
        """What the proxy does; ``kind`` is the target's word for ``frame``."""
        return FrameRule(index, "duplicate", self.link, self.victim, kind, self.nth, self.count)

    def __str__(self) -> str:
        more = f" and {self.count - 1} more" if self.count > 1 else ""
        return f"duplicate {self.frame} #{self.nth}{more} of {self.victim} on {self.link}"
