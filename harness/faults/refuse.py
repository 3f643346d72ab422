"""refuse: a role finds nobody where it connects, as while the other side is restarted or has not begun to listen."""

from __future__ import annotations

import math

from harness.faults.frames import LastingFault
from harness.proxy.records import FrameRule

CONNECT = "connect"
"""The word for no frame at all: from the start of the run."""


class Refuse(LastingFault, frozen=True, forbid_unknown_fields=True, tag="refuse", tag_field="kind"):
    """From the ``nth`` frame of kind ``frame`` on, nobody listens where ``victim`` connects to ``link``.

    That frame is lost and its connection ends, as by `reset`. With the frame ``connect`` nobody listens from the start
    of the run. ZeroMQ tries again about every 100 ms until a role passes ``until``, ``or_after`` seconds are over, or
    the run's faults are healed.
    """

    @property
    def cost(self) -> float:
        return super().cost if self.frame == CONNECT else math.inf

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        if (wrong := super().complaint()) is not None:
            return wrong
        if self.frame == CONNECT and (self.nth != 1 or self._only()):
            return "frame: connect is no frame, so it has no number, direction, connection or match"
        return None

    def rule(self, index: int, kind: str) -> FrameRule:
        """What the proxy does; ``kind`` is the target's word for ``frame``."""
        return self._rule("refuse", index, "" if self.frame == CONNECT else kind)

    def __str__(self) -> str:
        when = "the start" if self.frame == CONNECT else f"{self.frame} #{self.nth}{self._only()}"
        return f"refuse {self.victim} on {self.link} from {when} on{self._ends()}"
