"""How far every rank has come, in memory that the launcher can read at any time without asking anybody.

One row of 64-bit counters per rank, written by that rank alone. Nothing is written while the engine is idle, so that an
idle engine is silent, and reading costs no message: a rank that is stopped or stuck is seen though it cannot answer.
The same counters repeat the last numbers of `input` and `output`, so that a lost last message is seen too.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

from engine.clock import now

_FIELDS = 8
_ROW = _FIELDS * 8
_BEGUN, _ENDED, _BEATS, _AT, _TAKEN, _SENT = range(6)
_NANO = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Reading:
    """One rank's row.

    `begun` and `ended` count steps, `beats` counts all signs of progress (a step's begin and end, each collective),
    `at` is the time of the last one in seconds on the monotonic clock (0 before the first). `taken` and `sent` are rank
    0's numbers of the last message taken from `input` and of the last one sent on `output`.
    """

    begun: int
    ended: int
    beats: int
    at: float
    taken: int
    sent: int

    @property
    def busy(self) -> bool:
        """Whether the rank is inside a step."""
        return self.begun > self.ended


class Pulse:
    """A rank's end: it writes its own row."""

    def __init__(self, fd: int, rank: int) -> None:
        self._memory = mmap.mmap(fd, 0)
        os.close(fd)
        self._row = memoryview(self._memory).cast("Q")[rank * _FIELDS : (rank + 1) * _FIELDS]

    def begin(self, taken: int = 0) -> None:
        """A step begins; rank 0 has taken `taken` messages by now."""
        self._row[_TAKEN] = taken
        self._row[_BEGUN] += 1
        self.beat()

    def end(self, sent: int = 0) -> None:
        """The step is over; rank 0 has sent `sent` messages by now."""
        self._row[_SENT] = sent
        self._row[_ENDED] += 1
        self.beat()

    def beat(self) -> None:
        """Something inside the step is done."""
        self._row[_AT] = int(now() * _NANO)
        self._row[_BEATS] += 1


class PulseTable:
    """The launcher's end: all rows, to be read."""

    def __init__(self, size: int) -> None:
        self._fd = os.memfd_create("nowedge-engine-pulse", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self._fd, size * _ROW)
            self._memory = mmap.mmap(self._fd, 0, prot=mmap.PROT_READ)
        except BaseException:
            os.close(self._fd)
            raise
        self._size = size

    def fileno(self) -> int:
        """The descriptor to hand to every rank."""
        return self._fd

    def read(self) -> list[Reading]:
        """A reading of every rank, in rank order."""
        rows = memoryview(bytes(self._memory[: self._size * _ROW])).cast("Q")
        return [self._reading(rows[rank * _FIELDS : (rank + 1) * _FIELDS]) for rank in range(self._size)]

    def close(self) -> None:
        """Give the memory back. Safe to call twice."""
        if self._fd >= 0:
            self._memory.close()
            os.close(self._fd)
            self._fd = -1

    def _reading(self, row: memoryview) -> Reading:
        return Reading(row[_BEGUN], row[_ENDED], row[_BEATS], row[_AT] / _NANO, row[_TAKEN], row[_SENT])
