"""linger: sockets keep what is unsent for longer, or shorter, than the engine has chosen when it closes them.

With ``milliseconds = -1``, ZeroMQ's own default, a context waits for ever in its end for a peer that is not there.
"""

from __future__ import annotations

from harness.faults.hand import Hand
from harness.faults.settings import InstantFault


class Linger(InstantFault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="linger", tag_field="kind"):
    """From ``at`` on each socket of ``link`` that the role closes lingers for ``milliseconds``; -1: until all is sent.

    LINGER is set in the close itself, whatever the engine asks for there. Fires with the first socket.
    """

    link: str
    milliseconds: int = -1

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        if not -1 <= self.milliseconds <= 600_000:
            return f"milliseconds: {self.milliseconds} is outside 0..600000, and is not -1"
        return None

    def strike(self, hand: Hand) -> None:
        hand.adjust_sockets(self.link, "linger", self.milliseconds)

    def __str__(self) -> str:
        how = "for ever" if self.milliseconds < 0 else f"for {self.milliseconds} ms"
        return f"the sockets of {self.link} of {self.victim} linger {how} from {self.at} on"
