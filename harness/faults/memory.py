"""memory: one process gets no more memory from one instant on, as under a limit that is too low for it."""

from __future__ import annotations

import resource

from harness.faults.hand import Hand
from harness.faults.settings import LimitFault

_MEGABYTE = 1 << 20


class Memory(LimitFault, frozen=True, forbid_unknown_fields=True, tag="memory", tag_field="kind"):
    """From ``at`` on, that process's address space grows by ``megabytes`` at most. Undone when faults are healed.

    What is asked for beyond that ends as MemoryError, or as the same error of a library.
    """

    megabytes: int = 0

    limit = resource.RLIMIT_AS

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        return None if 0 <= self.megabytes <= 1 << 20 else f"megabytes: {self.megabytes} is outside 0..1048576"

    def strike(self, hand: Hand) -> None:
        with open("/proc/self/statm", encoding="ascii") as statm:
            pages = int(statm.read().split()[0])
        hand.tell_lane()
        hand.fired()
        self.lower(pages * resource.getpagesize() + self.megabytes * _MEGABYTE)

    def __str__(self) -> str:
        return f"leave {self.victim} {self.megabytes} MiB of memory at {self.at}"
