"""The launcher's watch over a running engine: one thread, one latch.

The thread, named ``engine-monitor``, sleeps in one poll on every rank's exit and report, on the other clients' pipes
and on a wake descriptor; the poll has a timeout only while the watchdog has something to watch. It knows the ranks and
the latch, never the client, so that a forgotten client can be collected.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

from engine.clock import Deadline
from engine.death import has_failed, settle
from engine.errors import EngineDeadError, ExitCode
from engine.launch import Rank, Ranks
from engine.log import role_logger
from engine.messages import CLIENT_ROLE, Notice
from engine.wake import Wake
from engine.watchdog import Watchdog

LEAVE_GRACE = 2.0
"""Seconds for the ranks to leave by themselves once they have been told that the engine fails."""

KILL_MARGIN = 8.0
"""Seconds for signals to end what did not leave by itself, before :meth:`Monitor.stop` gives up waiting."""


class EngineStopped(EngineDeadError):
    """The engine was shut down by its owner: dead for every later call, but nobody's failure.

    `limit` seconds were given to it; with `drain` it was to finish first what was under way.
    """

    def __init__(self, limit: float = 0.0, *, drain: bool = False, cause: str = "the engine was shut down") -> None:
        super().__init__(CLIENT_ROLE, cause)
        self.limit = limit
        self.drain = drain


Dead = TypeVar("Dead", bound=EngineDeadError)


class DeathLatch:
    """The engine's death, once: the first error stays, all who listen are told. Safe from any thread.

    An orderly stop is latched in two stages: from :meth:`stop` on nothing more may be asked of the engine, and once it
    has left, and said all that it had to say, it is as dead as any other.

    An error that was raised holds its traceback, and so whoever called, the client included; a latch that held it would
    keep a forgotten client from being collected. So it is always the same object as long as anybody has it, but nobody
    here has it.
    """

    def __init__(self) -> None:
        # Reentrant: a collection of garbage, and in it the client's finalizer, may come at any moment.
        self._lock = threading.RLock()
        self._death: EngineDeadError | None = None
        self._raised: Callable[[], EngineDeadError | None] = lambda: None
        self._stopping: EngineStopped | None = None
        self._listeners: list[Callable[[], None]] = []
        self._latched = threading.Event()

    @property
    def error(self) -> EngineDeadError | None:
        """The error, or None while the engine lives."""
        if self._death is None:
            return None
        with self._lock:
            error = self._raised()
            if error is None:
                error = _twin(self._death)
                self._raised = weakref.ref(error)
            return error

    @property
    def death(self) -> EngineDeadError | None:
        """An equal error that nobody has raised, for whoever keeps it without raising it."""
        return self._death

    @property
    def stopping(self) -> EngineStopped | None:
        """The stop that was ordered, if one was."""
        return self._stopping

    def stop(self, order: EngineStopped) -> None:
        """Order a stop; only the first order counts."""
        with self._lock:
            if self._stopping is None:
                self._stopping = order

    def set(self, error: EngineDeadError) -> bool:
        """Latch `error`; False if another came first, which then stays."""
        with self._lock:
            if self._death is not None:
                return False
            self._death = _twin(error)
            if error is self._stopping:
                self._raised = weakref.ref(error)
            if self._stopping is not None:
                self._stopping = _twin(self._stopping)  # what may have been raised is nobody's here any more
            self._latched.set()
            listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()
        return True

    def disown(self, error: EngineDeadError) -> None:
        """In a forked child: whatever the parent's latch says, here it says this, and nobody listens."""
        self._lock, self._latched = threading.RLock(), threading.Event()
        self._raised, self._death = (lambda: None), _twin(error)
        self._latched.set()
        self._listeners = []

    def wait(self, limit: float) -> bool:
        """Block until the engine is dead, at most `limit` seconds; whether it is."""
        return self._latched.wait(limit)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` once when the engine dies, from the thread that finds out; at once if it is dead already."""
        with self._lock:
            if self._death is None:
                self._listeners.append(listener)
                return
        listener()

    def check(self) -> None:
        """Raise the latched error, if there is one."""
        if (error := self.error) is not None:
            try:
                raise error.with_traceback(None) from None
            finally:
                del error  # its traceback holds this frame

    def check_open(self) -> None:
        """Raise unless something may still be asked of the engine: the latched error, or the order to stop."""
        self.check()
        if self._stopping is not None:
            raise self._stopping.with_traceback(None) from None


def _twin(error: Dead) -> Dead:
    """The same error as if it had never been raised."""
    twin = type(error).__new__(type(error), *error.args)
    twin.__dict__.update(error.__dict__)
    return twin


class Guests(Protocol):
    """The engine's other clients, as the monitor sees them; see :mod:`engine.client.seats`."""

    def attend(self, ranks: Ranks) -> EngineDeadError | None:
        """Let `ranks` wait for what they say too, and take in what they have said: a death that one found, or None."""


class Monitor:
    """Handle on the monitor thread."""

    def __init__(self, ranks: Ranks, latch: DeathLatch, watchdog: Watchdog, guests: Guests) -> None:
        self._latch = latch
        self._watchdog = watchdog
        self._wake = Wake()
        ranks.watch(self._wake.fileno())
        self.thread = threading.Thread(
            target=_watch, args=(ranks, latch, self._wake, watchdog, guests), name="engine-monitor", daemon=True
        )
        try:
            self.thread.start()
        except BaseException:
            ranks.unwatch(self._wake.fileno())
            self._wake.close()
            raise

    def wake(self) -> None:
        """Let the thread look at the latch: whoever latches an error outside of it calls this."""
        self._wake.call()

    def busy(self) -> None:
        """Something was sent: if the thread sleeps without a limit, let it ask the watchdog anew."""
        if self._watchdog.asleep:
            self.wake()

    def stop(self, limit: float, *, drain: bool = False) -> None:
        """Stop the engine, if it still lives, in order within `limit` seconds; return when no rank is left.

        Safe to call again, but not on the thread itself.
        """
        self._latch.stop(EngineStopped(limit, drain=drain))
        self.wake()
        self.thread.join(limit + LEAVE_GRACE + KILL_MARGIN)
        if not self.thread.is_alive():
            self._wake.close()


def _watch(ranks: Ranks, latch: DeathLatch, wake: Wake, watchdog: Watchdog, guests: Guests) -> None:
    """The thread: until the first death, or the order to stop, or an error that was latched by somebody else; then
    until no rank is left."""
    try:
        error = _await_death(ranks, latch, wake, watchdog, guests)
    except Exception as failure:
        # An engine that nobody watches must not go on: its next death would reach nobody.
        error = EngineDeadError(CLIENT_ROLE, f"its monitor thread failed: {type(failure).__name__}: {failure}")
        latch.set(error)
    try:
        ranks.unwatch(wake.fileno())
        if isinstance(error, EngineStopped):
            error = _stop(ranks, latch, error, watchdog.sent)
        if not isinstance(error, EngineStopped):
            ranks.take_down(Notice("fail", error.culprit, error.cause), LEAVE_GRACE)
    except Exception:
        role_logger(CLIENT_ROLE, "ERROR").exception("the ranks could not be stopped in order, they are killed")
        ranks.kill()
    finally:
        # Last: what the ranks had to say while they left has been sent by now, and is still delivered.
        latch.set(error)
        ranks.close()


def _await_death(ranks: Ranks, latch: DeathLatch, wake: Wake, watchdog: Watchdog, guests: Guests) -> EngineDeadError:
    while (error := latch.death or latch.stopping) is None:
        complaint = guests.attend(ranks)
        if complaint is not None:
            latch.set(complaint)
            continue
        ranks.wait(watchdog.deadline())
        wake.clear()
        if latch.death is not None or latch.stopping is not None:
            continue
        if any(has_failed(rank) for rank in ranks.all):
            death = settle(ranks)
            latch.set(EngineDeadError(death.culprit, death.cause))
        elif (stall := watchdog.bark()) is not None:
            latch.set(stall)
    return error


def _stop(ranks: Ranks, latch: DeathLatch, order: EngineStopped, said: int) -> EngineDeadError:
    """Stop in order; returns the order, or the death that came before its end.

    `said` is the number of the last message that was sent before the order.
    """
    deadline = Deadline.after(order.limit)
    if order.drain and ranks.all:
        # What is under way goes on, so it may still fail.
        ranks.all[0].notify(Notice("stop", limit=order.limit, drain=True, said=said))
        while not ranks.all[0].ended and not deadline.expired():
            ranks.wait(deadline)
            if any(has_failed(rank) and not _left_in_order(rank) for rank in ranks.all):
                death = settle(ranks)
                latch.set(EngineDeadError(death.culprit, death.cause))
                return latch.death or order
        if not ranks.all[0].ended:
            order = EngineStopped(
                order.limit, drain=True, cause=f"the engine was shut down, undrained after {order.limit:g} s"
            )
    ranks.stop(deadline, said)
    return order


def _left_in_order(rank: Rank) -> bool:
    return rank.ended and rank.failed is None and rank.exitcode == ExitCode.STOPPED
