"""When the signals that end a program may come.

A program may make an exception of them, which then comes anywhere in its main thread: it must not come between a thing
and the place from which it is given back. A thread that is started while they wait never takes one: else the system
would hand it what the main thread does not take, and the exception would come there all the same.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

ENDING = frozenset({signal.SIGINT, signal.SIGTERM})


@contextlib.contextmanager
def signals_wait() -> Iterator[None]:
    """Inside the block the signals that end a program wait; after it they come."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def signals_come() -> Iterator[None]:
    """Inside the block they come, whatever is around it: for a wait that may last."""
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
