"""hold: a frame, and all behind it on its way, waits in the proxy; the slow joiner on demand is a held SUBSCRIBE."""

from __future__ import annotations

from harness.faults.frames import LastingFault
from harness.proxy.records import FrameRule


class Hold(LastingFault, frozen=True, forbid_unknown_fields=True, tag="hold", tag_field="kind"):
    """Keeps the ``nth`` frame of kind ``frame`` back until a role passes ``until`` or ``or_after`` seconds are over.

    Whichever comes first releases; with neither, the frame stays until the run's faults are healed. The order of the
    frames on the connection is kept. If the sender ends, only what ``or_after`` releases still arrives.
    """

    def rule(self, index: int, kind: str) -> FrameRule:
        """What the proxy does; ``kind`` is the target's word for ``frame``."""
        return self._rule("hold", index, kind)

    def __str__(self) -> str:
        return f"hold {self._frames()}{self._ends()}"
