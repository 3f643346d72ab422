"""What every client of a multi-process engine does: start it, number what it sends, take it down.

The sockets are bound here; the ranks are started through a process factory; one wait listens to all of them until the
engine is ready or has failed. After that the monitor thread watches, and everything that must be given back at the end
is held by :class:`Resources`, so that it can be given back without the client.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import zmq

from engine import descriptors, health
from engine.clock import Deadline, now
from engine.config import LONGEST, EngineConfig, Launch
from engine.death import furthest_behind, has_failed, settle
from engine.endpoints import Endpoints
from engine.errors import EngineBusyError, EngineDeadError, EngineGenerateError, StartupError
from engine.health import Traffic
from engine.launch import INTERRUPT_GRACE, START_GRACE, ProcessFactory, Ranks, SpawnFactory
from engine.messages import (
    CLIENT_ROLE,
    Abort,
    Add,
    Hello,
    MessageType,
    Notice,
    Outputs,
    Request,
    engine_identity,
    rank_role,
)
from engine.monitor import KILL_MARGIN, LEAVE_GRACE, DeathLatch, Monitor
from engine.pulse import PulseTable
from engine.sockets import blocking, readable
from engine.watchdog import Watchdog

REPORT_MARGIN = 0.25
"""Seconds after the start-up deadline for the ranks, which have the same one, to say what they waited for."""

GIVING_UP = Notice("fail", CLIENT_ROLE, "the client gave up during start-up")
"""What the ranks are told when a start ends without a death of theirs: by an interrupt, or an error of the client."""


class Resources:
    """All that a client holds outside of itself. :meth:`release` gives it back, once."""

    def __init__(self, config: EngineConfig, context: zmq.Context[Any]) -> None:
        self.config = config
        self.context = context
        self.latch = DeathLatch()
        with contextlib.ExitStack() as undo:
            undo.callback(context.destroy, linger=0)
            self.endpoints = Endpoints.create(config.socket_dir, config.tp_size)
            undo.callback(self.endpoints.remove)
            self.pulses = PulseTable(config.tp_size)
            undo.callback(self.pulses.close)
            self.input = context.socket(zmq.ROUTER)
            self.output = context.socket(zmq.PULL)
            undo.pop_all()
        self.traffic = Traffic()
        self.owed: set[str] = set()
        """Ids of the requests that were sent and have not finished."""
        self.stop_limit = config.timeouts.shutdown
        self.ranks = Ranks()
        self.monitor: Monitor | None = None
        self.watchdog: Watchdog | None = None
        self.close_sockets: Callable[[], None] = self.close_unattached
        """How to close the sockets; a client that hands them to an event loop puts its own way here."""
        self.farewell = GIVING_UP
        """What the ranks are told if they have to go before the engine was ready."""
        self.released = False
        self._lock = threading.Lock()
        self._releasing: int | None = None
        self._done = threading.Event()
        _living.add(self)

    def open(self) -> None:
        """Bind. The ROUTER refuses to send to an engine that it does not know, rather than drop the message."""
        self.input.setsockopt(zmq.ROUTER_MANDATORY, 1)
        for socket, link in ((self.input, "input"), (self.output, "output")):
            socket.set_hwm(0)
            socket.linger = 0
            try:
                socket.bind(self.endpoints.address(link))
            except zmq.ZMQError as error:
                cause = f"cannot bind {self.endpoints.path(link)}: {error}"
                raise StartupError(CLIENT_ROLE, cause, exit_code=None, phase="launch") from error

    @property
    def shared(self) -> list[int]:
        """The descriptors that every rank gets: the claim, held until its last process is gone, and the pulse table."""
        claim = self.endpoints.claim
        return [claim.fileno() if claim is not None else -1, self.pulses.fileno()]

    def watch(self) -> None:
        """The engine is ready: from now on the monitor thread watches over it."""
        pids = [rank.process.pid for rank in self.ranks.all]
        self.watchdog = Watchdog(self.config.step_limit, self.pulses, self.traffic, self.owed, pids)
        self.monitor = Monitor(self.ranks, self.latch, self.watchdog)

    def sent(self) -> None:
        """A message has gone out on `input`."""
        self.traffic.at = now()
        self.traffic.sent += 1
        if self.monitor is not None:
            self.monitor.busy()

    def received(self, outputs: Outputs) -> None:
        """The next message has come in on `output`."""
        self.traffic.received += 1
        self.owed.difference_update(output.request_id for output in outputs.outputs if output.finish_reason is not None)

    def drain_output(self) -> Iterator[list[bytes]]:
        """What has arrived on `output` and was not received yet."""
        plain = blocking(self.output)
        while readable(plain):
            yield plain.recv_multipart(zmq.DONTWAIT)

    def close_unattached(self) -> None:
        self.input.close(linger=0)
        self.output.close(linger=0)

    def release(self) -> None:
        """Stop the ranks, close the sockets, remove the directory. Safe to call twice and from any thread.

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
            if self.monitor is not None:
                self.monitor.stop(self.stop_limit)
            else:
                # Without a death there is nobody but the program to give up, and it should end soon.
                start_grace = INTERRUPT_GRACE if self.farewell is GIVING_UP else START_GRACE
                self.ranks.take_down(self.farewell, LEAVE_GRACE, start_grace)
                self.ranks.close()
        finally:
            with contextlib.ExitStack() as rest:  # in the reverse order; one that fails does not keep the others
                rest.callback(self._done.set)
                rest.callback(self.endpoints.remove)
                rest.callback(self.pulses.close)
                rest.callback(self.context.destroy, linger=0)
                rest.callback(self.close_sockets)

    def disown(self) -> None:
        """In a forked child: the engine is the parent's. Let go what would keep it from noticing the parent's end."""
        # Made anew: another thread of the parent may have held them at the fork.
        self._lock, self._done = threading.Lock(), threading.Event()
        self._done.set()
        self.released = True
        self.latch.disown(EngineDeadError(CLIENT_ROLE, "this process is a fork of the one that the engine belongs to"))
        self.ranks.disown()
        if self.endpoints.claim is not None:
            self.endpoints.claim.release()


_living: weakref.WeakSet[Resources] = weakref.WeakSet()


def _disown_all() -> None:
    for resources in list(_living):
        if not resources.released:
            resources.disown()


os.register_at_fork(after_in_child=_disown_all)


class MPClient:
    """An engine in other processes, from the caller's side.

    The constructor starts the engine and blocks until it is ready. Raises :class:`StartupError`, having left nothing
    behind, if any rank fails or `timeouts.startup` passes.
    """

    def __init__(self, config: EngineConfig, factory: ProcessFactory | None = None) -> None:
        self.config = config
        self._identity = engine_identity(0)
        self._messages = 0
        startup = Deadline.after(config.timeouts.startup)
        descriptors.require(config.tp_size)
        resources = self._resources = Resources(config, self._context())
        self._finalizer = weakref.finalize(self, resources.release)
        # multiprocessing joins its children at exit, and must not come first.
        atexit.register(self._finalizer)
        try:
            resources.open()
            self._start(startup, factory if factory is not None else SpawnFactory())
            resources.watch()
        except BaseException as error:
            if isinstance(error, EngineDeadError):
                resources.farewell = Notice("fail", error.culprit, error.cause)
            self.shutdown()
            raise

    @property
    def endpoints(self) -> Endpoints:
        """Where this engine's sockets are."""
        return self._resources.endpoints

    @property
    def pids(self) -> dict[str, int]:
        """Process id of every rank by role; empty once the engine is gone."""
        return {rank.role: rank.process.pid for rank in list(self._resources.ranks.all)}

    @property
    def dead(self) -> EngineDeadError | None:
        """The error that every call raises from now on, or None while the engine lives."""
        return self._resources.latch.error

    def check_dead(self) -> None:
        """Raise the latched :class:`EngineDeadError` if the engine is dead."""
        self._resources.latch.check()

    def check_health(self) -> None:
        """Raise if a request submitted now could not complete, see :mod:`engine.health`.

        The latched :class:`EngineDeadError` if the engine is dead, :class:`EngineStalledError` if it is stopped or has
        made no progress for `timeouts.stall` seconds with something to do.
        """
        self.check_dead()
        resources = self._resources
        health.check(resources.pulses.read(), resources.traffic, list(self.pids.values()), self.config.timeouts.stall)

    def shutdown(self, timeout: float | None = None) -> None:
        """Stop the engine (in order within `timeout` seconds, then by signals) and give everything back. Idempotent.

        The default is `timeouts.shutdown`. Less than 0 counts as 0, more than :data:`engine.config.LONGEST` as that.
        Raises ValueError, and stops nothing, for what is no number of seconds.
        """
        if timeout is not None:
            if not isinstance(timeout, int | float) or timeout != timeout:
                raise ValueError(f"timeout: got {timeout!r}, expected seconds, or None for timeouts.shutdown")
            self._resources.stop_limit = float(min(max(timeout, 0), LONGEST))
        self._resources.release()
        self._finalizer.detach()
        atexit.unregister(self._finalizer)

    # ---- start-up ----

    def _context(self) -> zmq.Context[Any]:
        """The kind of ZMQ context that the client's sockets come from."""
        return zmq.Context()

    def _start(self, deadline: Deadline, factory: ProcessFactory) -> None:
        resources, ranks = self._resources, self._resources.ranks
        epoch = secrets.randbits(63)
        launch = Launch(
            config=self.config,
            epoch=epoch,
            directory=resources.endpoints.directory,
            private=resources.endpoints.private,
            startup_at=deadline.at or 0.0,
        )
        try:
            ranks.start(launch, factory, resources.shared)
        except Exception as error:
            role = rank_role(len(ranks.all))
            raise StartupError(role, f"cannot be started: {error}", exit_code=None, phase="launch") from error
        descriptor = int(blocking(resources.input).get(zmq.FD))
        ranks.watch(descriptor)
        try:
            self._await_ready(deadline, epoch)
        finally:
            ranks.unwatch(descriptor)

    def _await_ready(self, deadline: Deadline, epoch: int) -> None:
        ranks, limit = self._resources.ranks, deadline.later_by(REPORT_MARGIN)
        greeted = False
        while True:
            # The socket's descriptor only tells of changes, so the socket itself is asked before every wait.
            greeted = greeted or self._take_hello(epoch)
            if any(has_failed(rank) for rank in ranks.all):
                death = settle(ranks)
                raise StartupError(death.culprit, death.cause, exit_code=death.exit_code, phase=death.phase)
            if greeted and all(rank.ready is not None for rank in ranks.all):
                return
            if limit.expired():
                late = furthest_behind(ranks.all)
                raise StartupError(
                    late.role,
                    f"not ready within {self.config.timeouts.startup:g} s",
                    exit_code=late.exitcode,
                    phase=late.phase,
                )
            ranks.wait(limit)

    def _take_hello(self, epoch: int) -> bool:
        """Whether rank 0's greeting has come. Raises :class:`StartupError` for anything else."""
        plain = blocking(self._resources.input)
        if not readable(plain):
            return False
        frames = plain.recv_multipart()
        with contextlib.suppress(msgspec.MsgspecError):
            if frames[0] == self._identity and len(frames) == 2:
                hello = msgspec.msgpack.decode(frames[1], type=Hello)
                if hello.epoch == epoch:
                    return True
        raise StartupError(
            rank_role(0), f"greeted with {frames!r}, expected its hello of this run", exit_code=None, phase="connect"
        )

    # ---- messages ----

    def _add_frames(self, request: Request) -> list[bytes]:
        """Frames of an ADD message.

        Raises :class:`EngineBusyError` if the engine holds as many requests as it may, :class:`EngineGenerateError` if
        the request's fields are of wrong types or its id is under way.
        """
        if request.request_id in self._resources.owed:
            raise EngineGenerateError(f"request id {request.request_id!r} is already under way")
        most = self.config.max_num_seqs + self.config.max_waiting
        if len(self._resources.owed) >= most:
            raise EngineBusyError(f"{most} requests are under way (max_num_seqs and max_waiting), try again later")
        body = self._encode(Add(self._messages + 1, request), request.request_id)
        return [self._identity, MessageType.ADD.value, body]

    def _abort_frames(self, request_ids: list[str]) -> list[bytes]:
        """Frames of an ABORT message."""
        body = self._encode(Abort(self._messages + 1, request_ids), request_ids)
        return [self._identity, MessageType.ABORT.value, body]

    def _encode(self, message: Add | Abort, what: object) -> bytes:
        # Read back before it is sent: a message that the engine cannot read would be the end of the engine.
        try:
            body = msgspec.msgpack.encode(message)
            msgspec.msgpack.decode(body, type=type(message))
        except (TypeError, ValueError, OverflowError) as error:
            raise EngineGenerateError(f"request {what!r} cannot be sent: {error}") from error
        self._messages += 1
        return body
