"""drop: whole frames vanish between two sockets, as a publisher with a full pipe makes them vanish."""

from __future__ import annotations

from harness.faults.frames import FramesFault
from harness.proxy.records import FrameRule


class Drop(FramesFault, frozen=True, forbid_unknown_fields=True, tag="drop", tag_field="kind"):
    """The ``nth`` frame of kind ``frame``, and the ``count - 1`` after it, between ``victim`` and the link's binder.

    Frames are counted per victim from the start of the run. Cannot be undone: what is gone is gone.
    """

    def rule(self, index: int, kind: str) -> FrameRule:
        """What the proxy does; ``kind`` is the target's word for ``frame``."""
        return self._rule("drop", index, kind)

    def __str__(self) -> str:
        return f"drop {self._frames()}"
