"""corrupt: one byte of a frame arrives changed, as broken memory or another version of the sender would send it."""

from __future__ import annotations

from harness.faults.frames import FrameFault
from harness.proxy.records import FrameRule


class Corrupt(FrameFault, frozen=True, forbid_unknown_fields=True, tag="corrupt", tag_field="kind"):
    """Every bit of one byte of the ``nth`` frame of kind ``frame`` between ``victim`` and the link's binder is flipped.

    ``offset`` is the byte's place in the last part of the message (from its end if negative), None for the middle; one
    beyond the end is the last byte. The framing stays whole, and an empty message stays as it is. Cannot be undone.
    """

    offset: int | None = None

    def rule(self, index: int, kind: str) -> FrameRule:
        """What the proxy does; ``kind`` is the target's word for ``frame``."""
        return self._rule("corrupt", index, kind, offset=self.offset)

    def __str__(self) -> str:
        where = "" if self.offset is None else f" at byte {self.offset}"
        return f"corrupt {self._frames()}{where}"
