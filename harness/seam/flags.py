"""Flags in the run's shared memory, one for each fault: a thread can wait until another process raises one.

A rendezvous of processes without sleeps and without descriptors. The waiting is a futex, so that a flag that is raised
is seen at once, and a process that is killed while it waits leaves nothing behind.
"""

from __future__ import annotations

import ctypes
import mmap
import os

from harness.clock import SECOND, now

BYTES = 4096
MOST = BYTES // 4
"""How many flags there are."""

HEAL = MOST - 1
"""The flag that says that what stood of the faults is healed. Before that the lane is told this number, like a fault's.

What has not begun by then still comes, and so do the faults of a tear-down.
"""

_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_EVERYBODY = 2**31 - 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_libc = ctypes.CDLL(None, use_errno=True)


class Flags:
    """The flags of one run; ``memory`` is its shared memory, ``offset`` where they are there."""

    def __init__(self, memory: int, offset: int) -> None:
        self._map = mmap.mmap(memory, BYTES, offset=offset)
        self._words = (ctypes.c_uint32 * MOST).from_buffer(self._map)
        self._futex = _SYS_FUTEX[os.uname().machine]

    def raise_(self, index: int) -> None:
        """From now on nobody waits for this flag any more."""
        self._words[index] = 1
        _libc.syscall(self._futex, self._address(index), _FUTEX_WAKE, _EVERYBODY, None, None, 0)

    def is_up(self, index: int) -> bool:
        return bool(self._words[index])

    def wait(self, index: int, until: int = -1) -> bool:
        """Waits for the flag, at most until ``until`` (nanoseconds; -1: for ever); whether it is up."""
        while not self._words[index]:
            left = None
            if until >= 0:
                nanoseconds = until - now()
                if nanoseconds <= 0:
                    return False
                left = ctypes.byref(_Timespec(nanoseconds // SECOND, nanoseconds % SECOND))
            _libc.syscall(self._futex, self._address(index), _FUTEX_WAIT, 0, left, None, 0)
        return True

    def _address(self, index: int) -> ctypes.c_void_p:
        return ctypes.c_void_p(ctypes.addressof(self._words) + 4 * index)

    def close(self) -> None:
        """Gives the mapping back."""
        del self._words
        self._map.close()
