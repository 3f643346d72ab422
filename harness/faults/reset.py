"""reset: a connection breaks in the middle of its traffic and is made anew, as when something between is restarted.

The sockets on both sides reconnect by themselves and tell nobody; what was on its way is lost, and on PUB/SUB so is
whatever is published before the subscription has arrived again.
"""

from __future__ import annotations

from harness.faults.frames import FrameFault
from harness.proxy.records import FrameRule


class Reset(FrameFault, frozen=True, forbid_unknown_fields=True, tag="reset", tag_field="kind"):
    """The connection between ``victim`` and the link's binder breaks when its ``nth`` frame of kind ``frame`` comes.

    That frame is lost, and so is all else that was on its way in either direction. Heals by itself: ZeroMQ connects
    again, 100 ms later if nobody has set another interval.
    """

    def rule(self, index: int, kind: str) -> FrameRule:
        """What the proxy does; ``kind`` is the target's word for ``frame``."""
        return self._rule("reset", index, kind)

    def __str__(self) -> str:
        return f"reset the connection of {self.victim} on {self.link} at {self.frame} #{self.nth}{self._only()}"
