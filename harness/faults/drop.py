"""drop: whole frames vanish between two sockets, as a publisher with a full pipe makes them vanish."""

from __future__ import annotations

import math

from msgspec import Struct

from harness.proxy.records import FrameRule


class Drop(Struct, frozen=True, forbid_unknown_fields=True, tag="drop", tag_field="kind"):
    """The ``nth`` frame of kind ``frame``, and the ``count - 1`` after it, between ``victim`` and the link's binder.

    Frames are counted per victim from the start of the run. Cannot be undone: what is gone is gone.
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
        return FrameRule(index, "drop", self.link, self.victim, kind, self.nth, self.count)

    def __str__(self) -> str:
        more = f" and {self.count - 1} more" if self.count > 1 else ""
        return f"drop {self.frame} #{self.nth}{more} of {self.victim} on {self.link}"
