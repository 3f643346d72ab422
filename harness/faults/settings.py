"""The settings that faults have in common, and what follows from them: one record for each of the two families."""

from __future__ import annotations

import math

from msgspec import Struct

from harness.instant import Instant


class _Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """A run whose fault did not fire is vacuous, unless the fault is ``optional``."""

    optional: bool = False

    @property
    def cost(self) -> float:
        """The seconds that the fault can take from the engine at most; infinite where something is ended or lost."""
        return math.inf


class InstantFault(_Fault, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Done by a process to itself when it passes ``at``."""

    at: Instant

    @property
    def victim(self) -> str:
        return self.at.role


class FrameFault(_Fault, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Done by the proxy to the ``nth`` frame of kind ``frame`` between ``victim`` and the binder of ``link``.

    Frames are counted per victim from the start of the run.
    """

    link: str
    frame: str
    victim: str
    nth: int = 1

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        return None if self.nth >= 1 else f"nth: {self.nth}; frames count from 1"


class FramesFault(FrameFault, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """The same for the ``count - 1`` frames after it too."""

    count: int = 1

    def complaint(self) -> str | None:
        return super().complaint() or (None if self.count >= 1 else f"count: {self.count}; at least 1")

    def _frames(self) -> str:
        more = f" and {self.count - 1} more" if self.count > 1 else ""
        return f"{self.frame} #{self.nth}{more} of {self.victim} on {self.link}"
