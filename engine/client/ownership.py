"""What the client has that starts the engine, and gives back when it stops it."""

from __future__ import annotations

import contextlib
from typing import Any

import zmq

from engine.claim import CLAIM_LIMIT
from engine.client.resources import Resources
from engine.client.seats import ClientSeat, Seats
from engine.config import EngineConfig
from engine.endpoints import Endpoints
from engine.launch import INTERRUPT_GRACE, START_GRACE, Ranks
from engine.messages import CLIENT_ROLE, Notice
from engine.monitor import LEAVE_GRACE, Monitor
from engine.pulse import PulseTable
from engine.signals import signals_wait
from engine.wake import Wake
from engine.watchdog import Watchdog

GIVING_UP = Notice("fail", CLIENT_ROLE, "the client gave up during start-up")
"""What the ranks are told when a start ends without a death of theirs: by an interrupt, or an error of the client."""


class Ownership(Resources):
    """Its processes, its directory, its pulse table, the other seats."""

    def __init__(self, config: EngineConfig, context: zmq.Context[Any]) -> None:
        super().__init__(config, context)
        with contextlib.ExitStack() as undo:
            undo.callback(context.destroy, linger=0)
            limit = min(CLAIM_LIMIT, config.timeouts.startup)
            self.endpoints = Endpoints.create(config.socket_dir, config.tp_size, config.client_count, limit)
            undo.callback(self.endpoints.remove)
            self.pulses = PulseTable(config.tp_size, config.client_count)
            undo.callback(self.pulses.close)
            self.abandoned = Wake()
            undo.callback(self.abandoned.close)
            self.make_sockets()
            self.startup = context.socket(zmq.ROUTER)
            """Where rank 0 says HELLO; closed once the engine is ready."""
            undo.pop_all()
        self.ranks = Ranks()
        self.seats = Seats(self.latch)
        self.farewell = GIVING_UP
        """What the ranks are told if they have to go before the engine was ready."""
        self._epoch = 0
        self.shown()

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
        with signals_wait():  # a thread that nobody knows of would go on
            monitor = Monitor(self.ranks, self.latch, self.watchdog, self.seats)
            self.seats.changed = monitor.wake
            self.watch = monitor
            self.threads.append(monitor.thread)

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
        # Without a death there is nobody but the program to give up, and it should end soon.
        start_grace = INTERRUPT_GRACE if self.farewell is GIVING_UP else START_GRACE
        self.ranks.take_down(self.farewell, LEAVE_GRACE, start_grace)
        self.ranks.close()

    def _give_back(self) -> None:
        self.seats.close()
        self.endpoints.remove()

    def disown(self) -> None:
        super().disown()
        self.ranks.disown()
        self.seats.disown()
        if self.endpoints.claim is not None:
            self.endpoints.claim.release()
