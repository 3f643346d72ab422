"""How far every rank has come, in memory that the launcher can read at any time without asking anybody.

One row of 64-bit counters per rank, written by that rank alone. Nothing is written while the engine is idle, so that an
idle engine is silent, and reading costs no message: a rank that is stopped or stuck is seen though it cannot answer.
Behind them is one row per client, written by rank 0: the last numbers of the client's `input` and `output`, so that a
lost last message is seen too.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

from engine.clock import now

_FIELDS = 8
_ROW = _FIELDS * 8
_BEGUN, _ENDED, _BEATS, _AT, _MORE = range(5)
_TAKEN, _SENT = range(2)
_NANO = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Reading:
    """One rank's row.

    `begun` and `ended` count steps, `beats` counts all signs of progress (a step's begin and end, each collective),
    `at` is the time of the last one in seconds on the monotonic clock (0 before the first). `more` says that another
    step is to begin right after the last one, whatever comes.
    """

    begun: int
    ended: int
    beats: int
    at: float
    more: bool = False

    @property
    def busy(self) -> bool:
        """Whether the rank is inside a step."""
        return self.begun > self.ended


@dataclass(frozen=True, slots=True)
class LinkReading:
    """One client's row: rank 0's numbers of the last message taken from its `input` and sent on its `output`."""

    taken: int
    sent: int


class Pulse:
    """A rank's end of a table for `size` ranks: it writes its own row, and rank 0 those of the clients."""

    def __init__(self, fd: int, rank: int, size: int) -> None:
        self._memory = mmap.mmap(fd, 0)
        os.close(fd)
        self._size = size
        self._table = memoryview(self._memory).cast("Q")
        self._row = self._table[rank * _FIELDS : (rank + 1) * _FIELDS]

    def begin(self) -> None:
        """A step begins."""
        self._row[_BEGUN] += 1
        self.beat()

    def end(self, more: bool = False) -> None:
        """The step is over; `more` if the next one waits for nothing."""
        self._row[_MORE] = more
        self._row[_ENDED] += 1
        self.beat()

    def beat(self) -> None:
        """Something inside the step is done."""
        self._row[_AT] = int(now() * _NANO)
        self._row[_BEATS] += 1

    def link(self, client_index: int, taken: int, sent: int) -> None:
        """Rank 0: so many messages were taken from that client, and so many sent to it, by now."""
        row = (self._size + client_index) * _FIELDS
        self._table[row + _TAKEN] = taken
        self._table[row + _SENT] = sent


class PulseTable:
    """A client's end: the rows of `size` ranks and of `clients` clients, to be read. The first client makes it."""

    def __init__(self, size: int, clients: int = 1) -> None:
        self._fd = os.memfd_create("nowedge-engine-pulse", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self._fd, (size + clients) * _ROW)
            self._map(size)
        except BaseException:
            os.close(self._fd)
            raise

    @classmethod
    def shared(cls, fd: int, size: int) -> PulseTable:
        """The table that another client made, of which `fd` is a descriptor; it is the table's from now on."""
        table = cls.__new__(cls)
        table._fd = fd
        try:
            table._map(size)
        except BaseException:
            os.close(fd)
            raise
        return table

    def _map(self, size: int) -> None:
        self._memory = mmap.mmap(self._fd, 0, prot=mmap.PROT_READ)
        self._size = size

    def fileno(self) -> int:
        """The descriptor to hand to every rank."""
        return self._fd

    def read(self) -> list[Reading]:
        """A reading of every rank, in rank order."""
        rows = self._rows(0, self._size)
        return [self._reading(rows[rank * _FIELDS : (rank + 1) * _FIELDS]) for rank in range(self._size)]

    def link(self, client_index: int) -> LinkReading:
        """A reading of that client's links."""
        row = self._rows(self._size + client_index, 1)
        return LinkReading(row[_TAKEN], row[_SENT])

    def close(self) -> None:
        """Give the memory back. Safe to call twice."""
        if self._fd >= 0:
            self._memory.close()
            os.close(self._fd)
            self._fd = -1

    def _rows(self, first: int, count: int) -> memoryview:
        return memoryview(bytes(self._memory[first * _ROW : (first + count) * _ROW])).cast("Q")

    def _reading(self, row: memoryview) -> Reading:
        return Reading(row[_BEGUN], row[_ENDED], row[_BEATS], row[_AT] / _NANO, bool(row[_MORE]))
