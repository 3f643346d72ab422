"""Where a rank stops until the test lets it go on, and where the test waits for a rank."""

from __future__ import annotations

import os
import select

from tests.invariants.callers import BOUND


class Gate:
    """Closed at first. Made before the ranks, which need `fileno()` kept open; it opens once, for all."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def fileno(self) -> int:
        return self._read

    def wait(self) -> None:
        """In a rank: until the gate is open, or the test has ended."""
        os.read(self._read, 1)

    @property
    def is_open(self) -> bool:
        """In a rank: whether it need not wait."""
        return bool(select.select([self._read], [], [], 0)[0])

    def open(self) -> None:
        """In the test. Harmless if it is open."""
        if self._write >= 0:
            os.close(self._write)
            self._write = -1

    def close(self) -> None:
        self.open()
        os.close(self._read)


class Bell:
    """A rank rings it, the test hears it. The ranks need `fileno()` kept open."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def fileno(self) -> int:
        return self._write

    def ring(self) -> None:
        """In a rank."""
        os.write(self._write, b"!")

    def wait(self) -> None:
        """In the test: for one ring more."""
        assert select.select([self._read], [], [], BOUND)[0], "the rank did not come to that"
        os.read(self._read, 1)

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)
