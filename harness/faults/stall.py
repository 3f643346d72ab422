"""stall: one direction of a connection carries nothing any more, as a receiver that no longer reads would make it."""

from __future__ import annotations

from harness.faults.frames import LastingFault
from harness.proxy.records import FrameRule


class Stall(LastingFault, frozen=True, forbid_unknown_fields=True, tag="stall", tag_field="kind"):
    """From the ``nth`` frame of kind ``frame`` on, its direction of its connection carries and reads nothing.

    So the sender's buffers fill, then its ZeroMQ queue, up to its high-water mark. Not even the sender's end is seen.
    It goes on once a role passes ``until``, ``or_after`` seconds are over, or the run's faults are healed; nothing is
    lost by it.
    """

    def rule(self, index: int, kind: str) -> FrameRule:
        """What the proxy does; ``kind`` is the target's word for ``frame``."""
        return self._rule("stall", index, kind)

    def __str__(self) -> str:
        which = f"{self.frame} #{self.nth} of {self.victim}{self._only()}"
        return f"stall {self.link} at {which}{self._ends()}"
