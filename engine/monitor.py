"""The launcher's watch over a running engine: one thread, one latch.

The thread, named ``engine-monitor``, sleeps in one poll on every rank's exit and report and on a wake descriptor; the
poll has a timeout only while the watchdog has something to watch. It knows the ranks and the latch, never the client,
so that a forgotten client can be collected.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

from engine.clock import Deadline
from engine.death import has_failed, settle
from engine.errors import EngineDeadError
from engine.launch import Ranks
from engine.log import role_logger
from engine.messages import CLIENT_ROLE, Notice
from engine.watchdog import Watchdog

LEAVE_GRACE = 2.0
"""Seconds for the ranks to leave by themselves once they have been told that the engine fails."""

KILL_MARGIN = 8.0
"""Seconds for signals to end what did not leave by itself, before :meth:`Monitor.stop` gives up waiting."""


class DeathLatch:
    """The engine's death, once: the first error stays, all who listen are told. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._error: EngineDeadError | None = None
        self._listeners: list[Callable[[], None]] = []

    @property
    def error(self) -> EngineDeadError | None:
        """The error, or None while the engine lives."""
        return self._error

    def set(self, error: EngineDeadError) -> bool:
        """Latch `error`; False if another came first, which then stays."""
        with self._lock:
            if self._error is not None:
                return False
            self._error = error
            listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()
        return True

    def disown(self, error: EngineDeadError) -> None:
        """In a forked child: whatever the parent's latch says, here it says this, and nobody listens."""
        self._lock = threading.Lock()
        self._error = error
        self._listeners = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` once when the engine dies, from the thread that finds out; at once if it is dead already."""
        with self._lock:
            if self._error is None:
                self._listeners.append(listener)
                return
        listener()

    def check(self) -> None:
        """Raise the latched error, if there is one."""
        if self._error is not None:
            raise self._error.with_traceback(None) from None


class Monitor:
    """Handle on the monitor thread."""

    def __init__(self, ranks: Ranks, latch: DeathLatch, watchdog: Watchdog) -> None:
        self._latch = latch
        self._watchdog = watchdog
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closing = threading.Lock()
        ranks.watch(self._wake)
        self._thread = threading.Thread(
            target=_watch, args=(ranks, latch, self._wake, watchdog), name="engine-monitor", daemon=True
        )
        self._thread.start()

    def wake(self) -> None:
        """Let the thread look at the latch: whoever latches an error outside of it calls this."""
        with self._closing:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def busy(self) -> None:
        """Something was sent: if the thread sleeps without a limit, let it ask the watchdog anew."""
        if self._watchdog.asleep:
            self.wake()

    def stop(self, limit: float) -> None:
        """Stop the engine, if it still lives, in order within `limit` seconds; return when no rank is left.

        Safe to call again.
        """
        self._latch.set(EngineStopped(limit))
        self.wake()
        # A finalizer may run on any thread, this one included; then the thread ends by itself, right after.
        if self._thread is not threading.current_thread():
            self._thread.join(limit + LEAVE_GRACE + KILL_MARGIN)
        if not self._thread.is_alive():
            with self._closing:
                if self._wake >= 0:
                    os.close(self._wake)
                    self._wake = -1


class EngineStopped(EngineDeadError):
    """The engine was shut down by its owner: dead for every later call, but nobody's failure."""

    def __init__(self, limit: float) -> None:
        super().__init__(CLIENT_ROLE, "the engine was shut down")
        self.limit = limit


def _watch(ranks: Ranks, latch: DeathLatch, wake: int, watchdog: Watchdog) -> None:
    """The thread: until the first death, or until the latch is set by somebody else; then until no rank is left."""
    try:
        error = _await_death(ranks, latch, wake, watchdog)
    except Exception as failure:
        # An engine that nobody watches must not go on: its next death would reach nobody.
        error = EngineDeadError(CLIENT_ROLE, f"its monitor thread failed: {type(failure).__name__}: {failure}")
        latch.set(error)
    try:
        ranks.unwatch(wake)
        if isinstance(error, EngineStopped):
            ranks.stop(Deadline.after(error.limit))
        else:
            ranks.take_down(Notice("fail", error.culprit, error.cause), LEAVE_GRACE)
    except Exception:
        role_logger(CLIENT_ROLE, "ERROR").exception("the ranks could not be stopped in order, they are killed")
        ranks.kill()
    finally:
        ranks.close()


def _await_death(ranks: Ranks, latch: DeathLatch, wake: int, watchdog: Watchdog) -> EngineDeadError:
    while (error := latch.error) is None:
        ranks.wait(watchdog.deadline())
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(wake)
        if latch.error is not None:
            continue
        if any(has_failed(rank) for rank in ranks.all):
            death = settle(ranks)
            latch.set(EngineDeadError(death.culprit, death.cause))
        elif (stall := watchdog.bark()) is not None:
            latch.set(stall)
    return error
