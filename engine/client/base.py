"""What the clients of an engine in other processes share: how one begins, is asked for its state, and ends."""

from __future__ import annotations

import atexit
import secrets
from collections.abc import Callable
from typing import Any, Self, TypeVar

import zmq

from engine import descriptors, health
from engine.client import starting
from engine.client.guest import Guest
from engine.client.interface import EngineCoreClient
from engine.client.ownership import Ownership
from engine.client.resources import Resources, finalizer_of
from engine.client.seats import ClientSeat
from engine.client.sending import Outbox
from engine.clock import Deadline
from engine.config import EngineConfig, Launch
from engine.endpoints import Endpoints
from engine.errors import EngineDeadError
from engine.launch import ProcessFactory, SpawnFactory
from engine.messages import CLIENT_ROLE, Notice
from engine.signals import signals_wait

Held = TypeVar("Held", bound=Resources)


class MPClient(EngineCoreClient):
    """An engine in other processes, from the caller's side.

    The constructor starts the engine and blocks until it is ready. Raises :class:`engine.errors.StartupError`, having
    left nothing behind, if any rank fails or `timeouts.startup` passes.
    """

    def __init__(self, config: EngineConfig, factory: ProcessFactory | None = None) -> None:
        descriptors.require(config.tp_size)
        startup = Deadline.after(config.timeouts.startup)
        self._begin(
            lambda: Ownership(config, self._context()),
            lambda resources: self._start(resources, startup, factory),
        )

    @classmethod
    def join(cls, seat: ClientSeat) -> Self:
        """A further client of an engine that another one owns. It takes the seat over, and owns no process.

        Its :meth:`shutdown` leaves the engine running. Raises :class:`engine.errors.StartupError` if the engine does
        not welcome it within `timeouts.startup`, ValueError for a seat that has been taken.
        """
        client = cls.__new__(cls)
        client._begin(lambda: Guest(seat, client._context()), Guest.enter)
        return client

    def _begin(self, make: Callable[[], Held], start: Callable[[Held], None]) -> None:
        resources: Held | None = None
        try:
            with signals_wait():
                resources = make()
                self._finalizer = finalizer_of(self, resources.release)
                self._resources = resources
                self.config = resources.config
            with resources.starting():
                resources.open()
                start(resources)
                self._outbox = Outbox(resources)
                with signals_wait():
                    self._receive()
        except BaseException:
            if resources is not None:
                self.shutdown()
            raise

    def _receive(self) -> None:
        """Begin to take in what comes from the engine, if that can begin yet."""

    def _start(self, resources: Ownership, startup: Deadline, factory: ProcessFactory | None) -> None:
        launch = Launch(
            config=self.config,
            epoch=secrets.randbits(63),
            directory=resources.endpoints.directory,
            private=resources.endpoints.private,
            startup_at=startup.at or 0.0,
        )
        try:
            starting.start(resources, launch, factory if factory is not None else SpawnFactory())
            resources.watch_over(launch.epoch)
        except EngineDeadError as error:
            resources.farewell = Notice("fail", error.culprit, error.cause)
            raise

    def _context(self) -> zmq.Context[Any]:
        """The kind of ZMQ context that the client's sockets come from."""
        return zmq.Context()

    # ---- state ----

    @property
    def endpoints(self) -> Endpoints:
        """Where this engine's sockets are."""
        return self._resources.endpoints

    @property
    def client_index(self) -> int:
        """Which of the engine's clients this is; 0 owns the engine."""
        return self._resources.client_index

    @property
    def pids(self) -> dict[str, int]:
        """Process id of every rank by role; empty once the engine is gone."""
        return self._resources.pids()

    @property
    def dead(self) -> EngineDeadError | None:
        return self._resources.latch.error or self._resources.latch.stopping

    def check_dead(self) -> None:
        """Raise :attr:`dead`, if there is one."""
        self._resources.latch.check_open()

    def declare_dead(self, cause: str) -> EngineDeadError:
        """Count the engine as dead from now on, because of this side; a death that was known before stays the cause.

        Returns the error that every call raises from now on.
        """
        own = EngineDeadError(CLIENT_ROLE, cause)
        self._resources.die(own)
        return self._resources.latch.error or own

    def check_health(self) -> None:
        self.check_dead()
        resources = self._resources
        pulses, pids = resources.pulses, list(self.pids.values())
        health.check(pulses.read(), resources.link(), resources.traffic, pids, self.config.timeouts.stall)

    def seat(self, client_index: int) -> ClientSeat:
        """The place of one further client, from 1 to `client_count` - 1, to be handed to it; each is given once.

        Raises ValueError for another index, for one that was given away, and on a client that owns no engine.
        """
        self.check_dead()
        return self._resources.seat(client_index)

    def shutdown(self, timeout: float | None = None, *, drain: bool = False) -> None:
        self._resources.stop_within(timeout, drain=drain)
        self._resources.release()
        self._finalizer.detach()
        atexit.unregister(self._finalizer)
