"""foreign: a frame that was never meant for this run arrives, as from another server on the same address."""

from __future__ import annotations

from harness.faults.frames import FrameFault
from harness.proxy.records import FrameRule


class Foreign(FrameFault, frozen=True, forbid_unknown_fields=True, tag="foreign", tag_field="kind"):
    """Right before the ``nth`` frame of kind ``frame`` between ``victim`` and the link's binder comes a foreign one.

    ``data`` is that frame's body in hexadecimal digits; without it, it is a copy of the frame that follows, moved to a
    foreign run by the target (``Target.foreign``). Cannot be undone.
    """

    data: str | None = None

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        if (wrong := super().complaint()) is not None:
            return wrong
        try:
            bytes.fromhex(self.data or "")
        except ValueError:
            return f"data: '{self.data}' is not hexadecimal, two digits for each byte, such as c101"
        return None

    def rule(self, index: int, kind: str) -> FrameRule:
        """What the proxy does; ``kind`` is the target's word for ``frame``."""
        data = None if self.data is None else bytes.fromhex(self.data)
        return self._rule("foreign", index, kind, data=data)

    def __str__(self) -> str:
        what = "a copy from a foreign run" if self.data is None else f"the foreign frame {self.data or '(empty)'}"
        return f"send {what} before {self._frames()}"
