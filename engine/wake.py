"""A descriptor by which one thread wakes another from a poll."""

from __future__ import annotations

import contextlib
import os
import threading


class Wake:
    """An eventfd that may be closed while others still use it."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.RLock()  # a signal's handler may run, on the same thread, where it is held

    def fileno(self) -> int:
        """The descriptor, readable once somebody has called; -1 when closed."""
        return self._fd

    def call(self) -> None:
        """Wake whoever polls. Harmless once closed."""
        with self._lock:
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Whoever was woken has seen it."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)

    def close(self) -> None:
        """Give the descriptor back. Safe to call twice."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def disown(self) -> None:
        """In a forked child, where another thread may have held the lock: close this copy."""
        self._lock = threading.RLock()
        self.close()
