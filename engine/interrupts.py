"""Ctrl-C and SIGTERM for a program that owns an engine: however often and whenever they come, one orderly end.

Nothing here is used by the library parts of the engine: what signals mean is for the program to say.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from engine.clock import now

SIGNALS = (signal.SIGINT, signal.SIGTERM)

STOP_LIMIT = 1.0
"""Seconds that an interrupted program gives its engine to stop in order, before signals are used."""

DEAF = 2.0
"""Seconds for which further signals are ignored: the time in which the first one has ended everything."""


class Interrupted(KeyboardInterrupt):
    """The program was asked to end by signal `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Interrupts:
    """What has come, and what it does: it raises :class:`Interrupted`, or cancels the task that was named for it."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._heard = 0.0
        self._deferring = False
        self._task: tuple[asyncio.AbstractEventLoop, asyncio.Task[object]] | None = None

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Handle the signals inside the block."""
        before = {signum: signal.signal(signum, self._handle) for signum in SIGNALS}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    @contextlib.contextmanager
    def cancelling(self, task: asyncio.Task[object]) -> Iterator[None]:
        """Inside the block a signal cancels `task` instead: an exception out of an event loop would leave it half run.

        What the loop's tasks must not be torn out of comes to its end in order.
        """
        self._task = (task.get_loop(), task)
        try:
            yield
        finally:
            self._task = None

    @contextlib.contextmanager
    def deferring(self) -> Iterator[None]:
        """Inside the block a signal is only noted: the end has begun and takes a bounded time."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False

    @property
    def stop_limit(self) -> float | None:
        """How long the engine may take to stop: :data:`STOP_LIMIT` once a signal has come, else its own time."""
        return None if self.number is None else STOP_LIMIT

    def _handle(self, number: int, frame: FrameType | None) -> None:
        heard, self._heard = self._heard, now()
        self.number = number
        if self._deferring:
            return
        if self._heard - heard < DEAF:
            self._heard = heard
            return
        if self._task is None:
            raise Interrupted(number)
        loop, task = self._task
        loop.call_soon_threadsafe(task.cancel)
