"""The frames that a fault of the proxy is done to, what the proxy's rule for them is, and how long it lasts."""

from __future__ import annotations

from typing import Any, Literal

from harness.faults.settings import _Fault, ends, longest, wrong_time
from harness.instant import Instant
from harness.proxy.records import Action, FrameRule


class FrameFilter(_Fault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Which frames count at all: those in one ``direction``, of the ``connection``-th that the victim makes.

    With ``match`` only those of which a part contains this: text, or bytes as hexadecimal digits after ``0x``.
    """

    direction: Literal["either", "to_binder", "to_connector"] = "either"
    connection: int | None = None
    match: str | None = None

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        if self.connection is not None and self.connection < 1:
            return f"connection: {self.connection}; connections count from 1"
        try:
            empty = self._wanted() == b""
        except ValueError:
            return f"match: '{self.match}' is not hexadecimal, two digits for each byte after 0x, such as 0xc101"
        return "match: empty; every frame contains that" if empty else None

    def _wanted(self) -> bytes | None:
        if self.match is None or not self.match.startswith("0x"):
            return None if self.match is None else self.match.encode()
        return bytes.fromhex(self.match[2:])

    def _only(self) -> str:
        """The filters as the end of a sentence."""
        told = f" {self.direction.replace('_', ' the ')}" if self.direction != "either" else ""
        told += f" in connection {self.connection}" if self.connection is not None else ""
        return told + (f" with '{self.match}'" if self.match is not None else "")


class FrameFault(FrameFilter, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Done by the proxy to the ``nth`` frame of kind ``frame`` between ``victim`` and the binder of ``link``.

    Frames are counted per victim from the start of the run.
    """

    link: str
    frame: str
    victim: str
    nth: int = 1

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        return super().complaint() or (None if self.nth >= 1 else f"nth: {self.nth}; frames count from 1")

    def _rule(self, action: Action, index: int, kind: str, **settings: Any) -> FrameRule:
        """The proxy's rule for these frames; ``kind`` is the target's word for ``frame``."""
        return FrameRule(
            index,
            action,
            self.link,
            self.victim,
            kind,
            self.nth,
            direction=self.direction,
            connection=self.connection,
            match=self._wanted(),
            **settings,
        )

    def _frames(self) -> str:
        """The frames as a sentence says them."""
        return f"{self.frame} #{self.nth} of {self.victim} on {self.link}{self._only()}"


class FramesFault(FrameFault, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """The same for the ``count - 1`` frames after it too."""

    count: int = 1

    def complaint(self) -> str | None:
        return super().complaint() or (None if self.count >= 1 else f"count: {self.count}; at least 1")

    def _rule(self, action: Action, index: int, kind: str, **settings: Any) -> FrameRule:
        return super()._rule(action, index, kind, count=self.count, **settings)

    def _frames(self) -> str:
        more = f" and {self.count - 1} more" if self.count > 1 else ""
        return f"{self.frame} #{self.nth}{more} of {self.victim} on {self.link}{self._only()}"


class LastingFault(FrameFault, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """It lasts until a role passes ``until`` or ``or_after`` seconds are over, whichever comes first.

    With neither, it lasts until the run's faults are healed.
    """

    until: Instant | None = None
    or_after: float | None = None

    @property
    def cost(self) -> float:
        return longest(self.or_after)

    def complaint(self) -> str | None:
        return super().complaint() or wrong_time(self.or_after)

    def _rule(self, action: Action, index: int, kind: str, **settings: Any) -> FrameRule:
        ends = {"after": self.or_after, "until_signal": self.until is not None}
        return super()._rule(action, index, kind, **ends, **settings)

    def _ends(self) -> str:
        """What ends it, as the end of a sentence."""
        said = ends(self.until, self.or_after)
        return f" {said}" if said else ""
