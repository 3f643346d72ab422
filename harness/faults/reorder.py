"""reorder: a frame arrives behind the one that was sent after it, as over two paths of unequal length."""

from __future__ import annotations

from harness.faults.frames import FrameFault
from harness.proxy.records import FrameRule


class Reorder(FrameFault, frozen=True, forbid_unknown_fields=True, tag="reorder", tag_field="kind"):
    """The ``nth`` frame of kind ``frame`` goes out behind the next frame of its direction of its connection.

    If none comes, it goes when the run's faults are healed; if the connection ends before, it is lost.
    """

    def rule(self, index: int, kind: str) -> FrameRule:
        """What the proxy does; ``kind`` is the target's word for ``frame``."""
        return self._rule("reorder", index, kind)

    def __str__(self) -> str:
        return f"reorder {self._frames()} behind the next frame"
