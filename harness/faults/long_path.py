"""long_path: the engine's folder has so long a name that a socket in it cannot have one, as with a deep TMPDIR.

The kernel takes 107 bytes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from harness.faults.hand import Hand
from harness.faults.settings import InstantFault
from harness.instant import Instant

_LONGEST_NAME = 200
"""Bytes that one folder's name has at most."""


class LongPath(InstantFault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="long_path", tag_field="kind"):
    """The path of the folder that the engine is given is at least ``size`` bytes long.

    One of 80 bytes has to be served; with one of 120 the engine has to say so in one clear sentence, and to leave
    nothing.
    """

    size: int = 120
    at: Instant = Instant("client", "start")

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        if self.at != Instant("client", "start"):
            return f"at: {self.at}; the folder has its name from the start, leave this out"
        return None if 80 <= self.size <= 3000 else f"size: {self.size} is outside 80..3000 bytes"

    def below(self, folder: Path) -> Path:
        """A folder of that length below this one; the @ says that it is no file that a run has left."""
        while (missing := self.size - len(os.fsencode(folder))) > 0:
            folder = folder / "@".ljust(min(missing - 1, _LONGEST_NAME), "d")
        return folder

    def strike(self, hand: Hand) -> None:
        hand.fired()

    def __str__(self) -> str:
        return f"the engine's folder has a path of {self.size} bytes"


def engine_folder(run: Path, faults: Sequence[object]) -> Path:
    """The folder that the engine of a run is given, below the run's own."""
    folder = run / "e"
    for fault in faults:
        if isinstance(fault, LongPath):
            folder = fault.below(folder)
    return folder
