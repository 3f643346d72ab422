"""All that a client holds outside of itself, so that it can be given back without the client."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import zmq

from engine.client.calls import Calls
from engine.client.seats import ClientSeat, Seats
from engine.clock import now
from engine.config import LONGEST, EngineConfig
from engine.endpoints import Endpoints
from engine.errors import EngineDeadError, StartupError
from engine.health import Traffic
from engine.launch import INTERRUPT_GRACE, START_GRACE, Ranks
from engine.messages import CLIENT_ROLE, Notice, Outputs, client_link
from engine.monitor import KILL_MARGIN, LEAVE_GRACE, DeathLatch, EngineStopped, Monitor
from engine.pulse import LinkReading, PulseTable
from engine.sockets import blocking, ready
from engine.wake import Wake
from engine.watchdog import Watchdog

GIVING_UP = Notice("fail", CLIENT_ROLE, "the client gave up during start-up")
"""What the ranks are told when a start ends without a death of theirs: by an interrupt, or an error of the client."""


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
        self.forget_reader: Callable[[], None] = lambda: None
        """In a forked child: let go the part that waits for outputs, which another thread may have held."""
        self.stop_limit = config.timeouts.shutdown
        self.drain = False
        self.released = False
        self._lock = threading.Lock()
        self._releasing: int | None = None
        self._done = threading.Event()
        self.endpoints: Endpoints
        self.pulses: PulseTable
        self.input: zmq.Socket[Any]
        self.output: zmq.Socket[Any]
        self.plain_input: zmq.Socket[bytes]
        self.plain_output: zmq.Socket[bytes]
        """The same two with blocking calls; closed with them, and not to be touched after that."""
        _living.add(self)

    # ---- sockets ----

    def make_sockets(self) -> None:
        self.input = self.context.socket(zmq.ROUTER)
        self.output = self.context.socket(zmq.PULL)
        self.plain_input, self.plain_output = blocking(self.input), blocking(self.output)

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
    def reachable(self) -> bool:
        """Whether `input` is still connected to the engine; for whoever sends there."""
        # A ROUTER that refuses to send to strangers is writable only while it knows somebody.
        return ready(self.plain_input, zmq.POLLOUT)

    def close_unattached(self) -> None:
        """Close every socket and the context, on the calling thread, which must be the one that uses them."""
        self.context.destroy(linger=0)

    def drain_output(self) -> Iterator[list[bytes]]:
        """What has arrived on `output` and was not received yet; each message is received when it is asked for."""
        while not self.output.closed:
            try:
                frames = self.plain_output.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            yield frames

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
        with self._lock:
            first = not self.released
            self.released = True
            if first:
                self._releasing = threading.get_ident()
        if not first:
            # But not for himself: a finalizer may run in the middle of it, on the same thread.
            if self._releasing != threading.get_ident():
                self._done.wait(self.stop_limit + LEAVE_GRACE + KILL_MARGIN)
            return
        try:
            self._stop()
        finally:
            self.latch.set(EngineStopped())
            with contextlib.ExitStack() as rest:  # in the reverse order; one that fails does not keep the others
                rest.callback(self._done.set)
                rest.callback(self._give_back)
                rest.callback(self.pulses.close)
                rest.callback(self.close_sockets)

    def _stop(self) -> None:
        if self.watch is not None:
            self.watch.stop(self.stop_limit, drain=self.drain)

    def _give_back(self) -> None:
        """What else there is."""

    def disown(self) -> None:
        """In a forked child: the engine is the parent's. Let go what would keep it from noticing the parent's end."""
        # Made anew: another thread of the parent may have held them at the fork.
        self._lock, self._done = threading.Lock(), threading.Event()
        self._done.set()
        self.released = True
        self.latch.disown(EngineDeadError(CLIENT_ROLE, "this process is a fork of the one that the engine belongs to"))
        self.calls.disown()
        self.forget_reader()


class Ownership(Resources):
    """What the client has that starts the engine: its processes, its directory, its pulse table, the other seats."""

    def __init__(self, config: EngineConfig, context: zmq.Context[Any]) -> None:
        super().__init__(config, context)
        with contextlib.ExitStack() as undo:
            undo.callback(context.destroy, linger=0)
            self.endpoints = Endpoints.create(config.socket_dir, config.tp_size, config.client_count)
            undo.callback(self.endpoints.remove)
            self.pulses = PulseTable(config.tp_size, config.client_count)
            undo.callback(self.pulses.close)
            self.make_sockets()
            self.startup = context.socket(zmq.ROUTER)
            """Where rank 0 says HELLO; closed once the engine is ready."""
            self.abandoned = Wake()
            """Readable once another thread gives up the start that is under way."""
            undo.pop_all()
        self.ranks = Ranks()
        self.seats = Seats(self.latch)
        self.farewell = GIVING_UP
        """What the ranks are told if they have to go before the engine was ready."""
        self._epoch = 0
        self._starter: int | None = None
        self._start_over = threading.Event()
        self._start_over.set()

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Inside the block this thread, and no other, deals with the ranks."""
        self._starter = threading.get_ident()
        self._start_over.clear()
        try:
            yield
        finally:
            self._start_over.set()

    def open(self) -> None:
        super().open()
        self.startup.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.bind(self.startup, "startup")

    @property
    def shared(self) -> list[int]:
        """The descriptors that every rank gets: the claim, held until its last process is gone, and the pulse table."""
        claim = self.endpoints.claim
        return [claim.fileno() if claim is not None else -1, self.pulses.fileno()]

    def watch_over(self, epoch: int) -> None:
        """The engine of this run is ready: from now on the monitor thread watches over it."""
        self._epoch = epoch
        pids = [rank.process.pid for rank in self.ranks.all]
        self.startup.close()
        self.watchdog = Watchdog(self.config.step_limit, self.pulses, self.traffic, self.debts, pids)
        monitor = Monitor(self.ranks, self.latch, self.watchdog, self.seats)
        self.seats.changed = monitor.wake
        self.watch = monitor

    def pids(self) -> dict[str, int]:
        return {rank.role: rank.process.pid for rank in list(self.ranks.all)}

    def seat(self, client_index: int) -> ClientSeat:
        pids = list(self.pids().values())
        return self.seats.make(
            self.config, self._epoch, self.endpoints.directory, client_index, pids, self.pulses.fileno()
        )

    def _stop(self) -> None:
        if self.watch is not None:
            super()._stop()
            return
        if not self._start_over.is_set() and self._starter != threading.get_ident():
            self.abandoned.call()
            self._start_over.wait(self.config.timeouts.startup + KILL_MARGIN)
        # Without a death there is nobody but the program to give up, and it should end soon.
        start_grace = INTERRUPT_GRACE if self.farewell is GIVING_UP else START_GRACE
        self.ranks.take_down(self.farewell, LEAVE_GRACE, start_grace)
        self.ranks.close()

    def _give_back(self) -> None:
        self.abandoned.close()
        self.seats.close()
        self.endpoints.remove()

    def disown(self) -> None:
        super().disown()
        self.ranks.disown()
        self.seats.disown()
        if self.endpoints.claim is not None:
            self.endpoints.claim.release()


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
