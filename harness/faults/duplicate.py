"""duplicate: whole frames come twice, as a sender that repeats what it takes for lost would send them."""

from __future__ import annotations

from harness.faults.frames import FramesFault
from harness.proxy.records import FrameRule


class Duplicate(FramesFault, frozen=True, forbid_unknown_fields=True, tag="duplicate", tag_field="kind"):
    """The ``nth`` frame of kind ``frame``, and the ``count - 1`` after it, are each passed on twice in a row.

    They are those between ``victim`` and the link's binder. Cannot be undone.
    """

    def rule(self, index: int, kind: str) -> FrameRule:
        """What the proxy does; ``kind`` is the target's word for ``frame``."""
        return self._rule("duplicate", index, kind)

    def __str__(self) -> str:
        return f"duplicate {self._frames()}"
