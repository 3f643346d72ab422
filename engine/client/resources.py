"""All that a client holds outside of itself, so that it can be given back without the client."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import zmq

from engine.client.calls import Calls
from engine.client.seats import ClientSeat
from engine.clock import Deadline, now
from engine.config import LONGEST, EngineConfig
from engine.endpoints import Endpoints
from engine.errors import EngineDeadError, StartupError
from engine.health import Traffic
from engine.messages import CLIENT_ROLE, Outputs, client_link
from engine.monitor import KILL_MARGIN, LEAVE_GRACE, DeathLatch, EngineStopped
from engine.pulse import LinkReading, PulseTable
from engine.signals import signals_wait
from engine.sockets import blocking, readable, ready
from engine.wake import Wake
from engine.watchdog import Watchdog

REST_LIMIT = 250
"""Milliseconds to wait for each message that a dead engine had sent and that has not been received."""

LAST_LIMIT = 2000
"""The same of an engine that was stopped in order: it has seen to it that all of them come."""


class Watch(Protocol):
    """Whoever watches over the engine for this client, on a thread of its own."""

    def wake(self) -> None:
        """An error was latched outside: look at the latch."""

    def busy(self) -> None:
        """Something was sent."""

    def stop(self, limit: float, *, drain: bool) -> None:
        """End what this client began, in order within `limit` seconds. Safe to call again."""


class Debts:
    """What the engine owes this client: truth is all that the watchdog asks."""

    def __init__(self, owed: set[str], calls: Calls) -> None:
        self._owed = owed
        self._calls = calls

    def __len__(self) -> int:
        return len(self._owed) + len(self._calls)


class Resources:
    """What every client has: two sockets, the latch, the tables of what is owed, and somebody who watches.

    :meth:`release` gives all of it back, once.
    """

    client_index = 0

    def __init__(self, config: EngineConfig, context: zmq.Context[Any]) -> None:
        self.config = config
        self.context = context
        self.latch = DeathLatch()
        self.traffic = Traffic()
        self.owed: set[str] = set()
        """Ids of the requests that were sent and have not finished."""
        self.calls = Calls()
        self.debts = Debts(self.owed, self.calls)
        self.watch: Watch | None = None
        self.watchdog: Watchdog | None = None
        self.close_sockets: Callable[[], None] = self.close_unattached
        """How to close the sockets; a client that hands them to a loop or a thread puts its own way here."""
        self.close_here: Callable[[], None] = lambda: None
        """For whoever waits for another thread's release: what only the waiting thread can close."""
        self.forget_reader: Callable[[], None] = lambda: None
        """In a forked child: let go the part that waits for outputs, which another thread may have held."""
        self.stop_limit = config.timeouts.shutdown
        self.drain = False
        self.released = False
        self.threads: list[threading.Thread] = []
        """Those whose end :meth:`release` waits for."""
        self._starter: int | None = None
        self._start_over = threading.Event()
        self._start_over.set()
        self._turns = itertools.count()
        self._inside: set[int] = set()
        self._stopped = threading.Event()
        self._done = threading.Event()
        self.endpoints: Endpoints
        self.pulses: PulseTable
        self.input: zmq.Socket[Any]
        self.output: zmq.Socket[Any]
        self.plain_input: zmq.Socket[bytes]
        self.plain_output: zmq.Socket[bytes]
        """The same two with blocking calls; closed with them, and not to be touched after that."""
        self._partings: zmq.Socket[bytes]
        """Where ZMQ tells that a connection of `input` has ended."""
        self._parted = False
        self._last: int | None = None
        self.abandoned: Wake
        """Readable once another thread gives up the start that is under way."""

    # ---- start ----

    def shown(self) -> None:
        """All of it is made: from now on a forked child lets it go."""
        _living.add(self)

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Inside the block this thread, and no other, deals with what is here. Raises as :meth:`check_wanted`."""
        self._starter = threading.get_ident()
        self._start_over.clear()
        try:
            self.check_wanted()
            yield
            self.check_wanted()
        finally:
            self._start_over.set()

    def check_wanted(self) -> None:
        """Raise :class:`StartupError` if the client was shut down before its start is over."""
        if self.released:
            raise StartupError(CLIENT_ROLE, "shut down during start-up", exit_code=None, phase="launch")

    # ---- sockets ----

    def make_sockets(self) -> None:
        self.input = self.context.socket(zmq.ROUTER)
        self.output = self.context.socket(zmq.PULL)
        self.plain_input, self.plain_output = blocking(self.input), blocking(self.output)
        self._partings = blocking(self.input.get_monitor_socket(zmq.EVENT_DISCONNECTED))

    def open(self) -> None:
        """Bind. The ROUTER refuses to send to an engine that it does not know, rather than drop the message."""
        self.input.setsockopt(zmq.ROUTER_MANDATORY, 1)
        for socket, link in ((self.input, "input"), (self.output, "output")):
            self.bind(socket, client_link(link, self.client_index))

    def bind(self, socket: zmq.Socket[Any], link: str) -> None:
        """Bind a socket without limits of its own. Raises :class:`StartupError`."""
        socket.set_hwm(0)
        socket.linger = 0
        try:
            socket.bind(self.endpoints.address(link))
        except zmq.ZMQError as error:
            cause = f"cannot bind {self.endpoints.path(link)}: {error}"
            raise StartupError(CLIENT_ROLE, cause, exit_code=None, phase="launch") from error

    @property
    def parted(self) -> bool:
        """Whether a connection of `input` has ended, most likely the engine's; for whoever sends there.

        What was on its way is let go then as if it had been sent, but never before this is true.
        """
        while readable(self._partings):
            self._partings.recv_multipart(zmq.DONTWAIT)
            self._parted = True
        return self._parted

    @property
    def reachable(self) -> bool:
        """Whether `input` is connected to the engine; for whoever sends there."""
        # A ROUTER that refuses to send to strangers is writable only while it knows somebody.
        return ready(self.plain_input, zmq.POLLOUT)

    def close_unattached(self) -> None:
        """Close every socket and the context, on the calling thread, which must be the one that uses them."""
        self.context.destroy(linger=0)

    def drain_output(self) -> Iterator[list[bytes]]:
        """What has arrived on `output` and was not received yet; each message is received when it is asked for.

        Once the engine is dead this is all that it had sent, also what is on its way to the socket by then.
        """
        while not self.output.closed:
            try:
                frames = self.plain_output.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                if not self._await_the_rest():
                    return
            else:
                yield frames

    def _await_the_rest(self) -> bool:
        """Of a dead engine: wait for what it has sent and ZMQ's own thread has not brought yet; False if nothing comes.

        What a killed rank 0 counted as sent may never come, so the wait is bounded, and the first in vain is the last.
        """
        if self.latch.error is None:
            return False
        if self._last is None:
            with contextlib.suppress(ValueError):  # given back by now, and nobody would read it
                self._last = self.link().sent
        if self._last is None or self.traffic.received >= self._last:
            return False
        if self.plain_output.poll(LAST_LIMIT if isinstance(self.latch.error, EngineStopped) else REST_LIMIT):
            return True
        self._last = 0
        return False

    # ---- traffic ----

    def sent(self) -> None:
        """A message has gone out on `input`."""
        self.traffic.at = now()
        self.traffic.sent += 1
        if self.watch is not None:
            self.watch.busy()

    def received(self, outputs: Outputs) -> None:
        """The next message has come in on `output`."""
        self.traffic.received += 1
        for output in outputs.outputs:
            if output.finish_reason is not None:
                self.owed.discard(output.request_id)

    def link(self) -> LinkReading:
        """How far rank 0 has come with this client's messages."""
        return self.pulses.link(self.client_index)

    def pids(self) -> dict[str, int]:
        """Process id of every rank by role; empty once the engine is gone."""
        raise NotImplementedError

    def seat(self, client_index: int) -> ClientSeat:
        """The place of one further client. Raises ValueError."""
        raise ValueError(f"client {self.client_index} does not own the engine, so it has no seats to give")

    # ---- end ----

    def die(self, error: EngineDeadError) -> None:
        """Latch an error that was found on this side, and let the watch take down what is left."""
        if self.latch.set(error) and self.watch is not None:
            self.watch.wake()

    def stop_within(self, timeout: float | None, *, drain: bool) -> None:
        """How :meth:`release` is to stop; raises ValueError for what is no number of seconds."""
        if timeout is not None:
            if not isinstance(timeout, int | float) or timeout != timeout:
                raise ValueError(f"timeout: got {timeout!r}, expected seconds, or None for timeouts.shutdown")
            self.stop_limit = float(min(max(timeout, 0), LONGEST))
        self.drain = drain

    def release(self) -> None:
        """Stop, close the sockets, give everything back. Safe to call twice and from any thread.

        Whoever comes second waits for the first, so that nothing is left for him either.
        """
        me = threading.get_ident()
        if me in self._inside:
            return  # a finalizer, or a signal's handler, in the middle of it on the same thread
        self._inside.add(me)
        try:
            first = next(self._turns) == 0
            self.released = True
            if not first:
                self._await_release()
            elif threading.current_thread() in self.threads:
                # A finalizer may run anywhere. This thread has to go on, or it would be waited for in vain.
                with signals_wait():  # the thread inherits that
                    threading.Thread(target=self._release, name="engine-release").start()
            else:
                self._release()
        finally:
            self._inside.discard(me)

    def _await_release(self) -> None:
        deadline = Deadline.after(self.stop_limit + LEAVE_GRACE + KILL_MARGIN)
        self._stopped.wait(deadline.remaining())
        self.close_here()
        self._done.wait(deadline.remaining())

    def _release(self) -> None:
        try:
            self._await_start()
            self._stop()
        finally:
            self.latch.set(EngineStopped())
            self._stopped.set()
            with contextlib.ExitStack() as rest:  # in the reverse order; one that fails does not keep the others
                rest.callback(self._done.set)
                rest.callback(self._give_back)
                rest.callback(self.abandoned.close)
                rest.callback(self.pulses.close)
                rest.callback(self.close_sockets)

    def _await_start(self) -> None:
        """Have a start that is under way on another thread given up."""
        if not self._start_over.is_set() and self._starter != threading.get_ident():
            self.abandoned.call()
            self._start_over.wait(self.config.timeouts.startup + KILL_MARGIN)

    def _stop(self) -> None:
        if self.watch is not None:
            self.watch.stop(self.stop_limit, drain=self.drain)

    def _give_back(self) -> None:
        """What else there is."""

    def disown(self) -> None:
        """In a forked child: the engine is the parent's. Let go what would keep it from noticing the parent's end."""
        # Made anew: another thread of the parent may have held them at the fork.
        self._stopped, self._done = threading.Event(), threading.Event()
        self._stopped.set()
        self._done.set()
        self._turns = itertools.count(1)
        self._inside.clear()
        self.close_here = lambda: None
        self.released = True
        self.latch.disown(EngineDeadError(CLIENT_ROLE, "this process is a fork of the one that the engine belongs to"))
        self.calls.disown()
        self.forget_reader()


_living: weakref.WeakSet[Resources] = weakref.WeakSet()


def _disown_all() -> None:
    for resources in list(_living):
        if not resources.released:
            resources.disown()


os.register_at_fork(after_in_child=_disown_all)


def finalizer_of(client: object, release: Callable[[], None]) -> weakref.finalize[..., Any]:
    """Release when the client is collected, or at exit."""
    finalizer = weakref.finalize(client, release)
    # multiprocessing joins its children at exit, and must not come first.
    atexit.register(finalizer)
    return finalizer
