"""How fast one direction may be written: a link of so many bytes a second, in small portions."""

from __future__ import annotations

from harness.clock import now

_SLICE_NS = 20_000_000
"""How much time one portion takes on the link; also what a late writer may catch up."""


class Pace:
    """`rate` is in bytes a second; the first `free` bytes are not counted."""

    __slots__ = ("_free", "_portion", "_rate", "next_ns")

    def __init__(self, rate: int, free: int = 0) -> None:
        self._rate = rate
        self._free = free
        self._portion = max(1, rate * _SLICE_NS // 1_000_000_000)
        self.next_ns = now()
        """When the next bytes may go."""

    def allowed(self) -> int:
        """How many bytes may go now."""
        if self._free:
            return self._free
        return self._portion if now() >= self.next_ns else 0

    def spent(self, size: int) -> None:
        """So many bytes have gone."""
        if self._free:
            self._free -= size
            return
        begun = max(self.next_ns, now() - _SLICE_NS)
        self.next_ns = begun + size * 1_000_000_000 // self._rate
