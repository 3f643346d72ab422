"""The start of an engine, from the client's side: processes, HELLO, INIT, READY, and one wait that listens to all.

HELLO says that rank 0 is there, with the version and the configuration that it was started with; INIT tells it where
the clients are; its welcome on `input` proves that the client's ROUTER knows it; READY comes last. Anything out of
turn, of another run or of another configuration is a failed start.
"""

from __future__ import annotations

import contextlib

import msgspec
import zmq

from engine.client.ownership import Ownership
from engine.clock import Deadline
from engine.codec import Decoder, packed
from engine.config import Launch
from engine.control import config_digest, engine_version
from engine.death import furthest_behind, has_failed, settle
from engine.errors import StartupError
from engine.launch import ProcessFactory
from engine.messages import (
    CLIENT_ROLE,
    EngineReady,
    Hello,
    Init,
    Startup,
    Welcome,
    client_link,
    engine_identity,
    rank_role,
)
from engine.sockets import blocking, readable

REPORT_MARGIN = 0.25
"""Seconds after the start-up deadline for the ranks, which have the same one, to say what they waited for."""


def start(resources: Ownership, launch: Launch, factory: ProcessFactory) -> None:
    """Start the engine; returns once it is ready. Raises :class:`StartupError`."""
    ranks = resources.ranks
    try:
        ranks.start(launch, factory, resources.shared)
    except Exception as error:
        role = rank_role(len(ranks.all))
        raise StartupError(role, f"cannot be started: {error}", exit_code=None, phase="launch") from error
    descriptors = [int(blocking(socket).get(zmq.FD)) for socket in (resources.startup, resources.input)]
    descriptors.append(resources.abandoned.fileno())
    for descriptor in descriptors:
        ranks.watch(descriptor)
    try:
        _await_ready(resources, launch)
    finally:
        for descriptor in descriptors:
            ranks.unwatch(descriptor)


def _await_ready(resources: Ownership, launch: Launch) -> None:
    ranks = resources.ranks
    limit = Deadline(launch.startup_at).later_by(REPORT_MARGIN)
    handshake = Handshake(resources, launch)
    while True:
        # A socket's descriptor only tells of changes, so the sockets themselves are asked before every wait.
        handshake.take()
        if any(has_failed(rank) for rank in ranks.all):
            death = settle(ranks)
            raise StartupError(death.culprit, death.cause, exit_code=death.exit_code, phase=death.phase)
        if handshake.done and all(rank.ready is not None for rank in ranks.all):
            return
        if resources.released:
            raise StartupError(CLIENT_ROLE, "shut down during start-up", exit_code=None, phase="launch")
        if limit.expired():
            # If no rank is late, what rank 0 says on the links has not arrived.
            late = ranks.all[0] if all(rank.ready is not None for rank in ranks.all) else furthest_behind(ranks.all)
            cause = f"not ready within {launch.config.timeouts.startup:g} s"
            raise StartupError(late.role, cause, exit_code=late.exitcode, phase=late.phase)
        ranks.wait(limit)


class Handshake:
    """What has been said so far on `startup` and on the owner's `input`."""

    def __init__(self, resources: Ownership, launch: Launch) -> None:
        self._resources = resources
        self._launch = launch
        self._identity = engine_identity(launch.engine_index)
        self._role = rank_role(0, launch.engine_index)
        self._startup: Decoder[Startup] = Decoder(Startup)  # type: ignore[arg-type]  # a union of records
        self._welcomed = False
        self._state = "new"

    @property
    def done(self) -> bool:
        """Whether READY has come, and the welcome before it."""
        return self._state == "ready" and self._welcomed

    def take(self) -> None:
        """Take in what has come. Raises :class:`StartupError` for anything that must not come now."""
        while readable(plain := blocking(self._resources.input)):
            self._take_welcome(plain.recv_multipart(zmq.DONTWAIT))
        while readable(plain := blocking(self._resources.startup)):
            self._take_startup(plain.recv_multipart(zmq.DONTWAIT))

    def _take_welcome(self, frames: list[bytes]) -> None:
        welcome = read_welcome(frames, self._identity, self._launch.epoch, 0)
        if welcome is None or self._welcomed:
            said = "a second welcome" if welcome is not None else repr(frames)
            raise self._error(f"greeted with {said}, expected its one welcome of this run")
        self._welcomed = True

    def _take_startup(self, frames: list[bytes]) -> None:
        identity, *rest = frames
        if identity != self._identity:
            raise self._error(f"an engine of unknown identity {identity.hex()} spoke on startup: {rest!r}")
        try:
            record = self._startup.decode(rest)
        except msgspec.MsgspecError as error:
            raise self._error(f"a frame on startup cannot be read: {error}") from error
        if record.epoch != self._launch.epoch:
            raise self._error(f"{type(record).__name__} on startup is of another run")
        if isinstance(record, Hello) and self._state == "new":
            self._answer(record)
            self._state = "connected"
        elif isinstance(record, EngineReady) and self._state == "connected":
            self._state = "ready"
        else:
            raise self._error(f"{type(record).__name__} came on startup in state {self._state}")

    def _answer(self, hello: Hello) -> None:
        ours = (self._launch.engine_index, engine_version(), config_digest(self._launch))
        theirs = (hello.engine_index, hello.version, hello.digest)
        if theirs != ours:
            raise self._error(f"said hello as (engine, version, configuration) {theirs}, expected {ours}")
        clients = range(self._launch.config.client_count)
        inputs, outputs = (
            [self._resources.endpoints.address(client_link(link, client)) for client in clients]
            for link in ("input", "output")
        )
        init = Init(self._launch.epoch, inputs, outputs)
        with contextlib.suppress(zmq.ZMQError):  # it is gone by now, and its exit says how
            frames = [self._identity, packed(init)]
            blocking(self._resources.startup).send_multipart(frames, zmq.DONTWAIT)

    def _error(self, cause: str) -> StartupError:
        return StartupError(self._role, cause, exit_code=None, phase="hello" if self._state == "new" else "connect")


def read_welcome(frames: list[bytes], identity: bytes, epoch: int, client_index: int) -> Welcome | None:
    """The welcome that an engine sends to that client in this run; None for anything else."""
    try:
        welcome = Decoder(Welcome).decode(frames[1:])
    except msgspec.MsgspecError:
        return None
    return welcome if frames[0] == identity and (welcome.epoch, welcome.client_index) == (epoch, client_index) else None
