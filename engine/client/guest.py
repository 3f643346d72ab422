"""What a client has that joins an engine which another one owns: its links, its pipes, a watch of its own."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import zmq

from engine.client.resources import Resources
from engine.client.seats import ClientSeat, Gone, Here, NewsReader, SeatWatch, say
from engine.client.starting import read_welcome
from engine.clock import Deadline
from engine.endpoints import Endpoints
from engine.errors import StartupError
from engine.messages import engine_identity, rank_role
from engine.pulse import PulseTable
from engine.signals import signals_wait
from engine.sockets import blocking, readable
from engine.wake import Wake
from engine.watchdog import Watchdog


class Guest(Resources):
    """A seat that has been taken. Raises ValueError if it was taken before."""

    def __init__(self, seat: ClientSeat, context: zmq.Context[Any]) -> None:
        super().__init__(seat.config, context)
        self.client_index = seat.client_index
        self._seat = seat
        self._seat_watch: SeatWatch | None = None
        with contextlib.ExitStack() as undo:
            undo.callback(context.destroy, linger=0)
            self._news, self._presence, pulses = seat.take()
            undo.callback(os.close, self._news)
            undo.callback(os.close, self._presence)
            os.set_blocking(self._news, False)
            self.endpoints = Endpoints(seat.directory, False)
            self.pulses = PulseTable.shared(pulses, seat.config.tp_size)
            undo.callback(self.pulses.close)
            self.abandoned = Wake()
            undo.callback(self.abandoned.close)
            self.make_sockets()
            undo.pop_all()
        self.shown()

    def enter(self) -> None:
        """Wait to be welcomed. Raises :class:`StartupError`."""
        deadline = Deadline.after(self.config.timeouts.startup)
        say(self._presence, Here(os.getpid()))
        poller = zmq.Poller()
        plain = blocking(self.input)
        for one in (plain, self._news, self.abandoned.fileno()):
            poller.register(one, zmq.POLLIN)
        while not readable(plain):
            self.check_wanted()
            events = dict(poller.poll(deadline.remaining_ms()))
            if self._news in events and (error := NewsReader(self._news).read()) is not None:
                raise StartupError(error.culprit, error.cause, exit_code=None, phase="connect")
            if not events and deadline.expired():
                cause = f"no welcome came within {self.config.timeouts.startup:g} s"
                raise StartupError(rank_role(0), cause, exit_code=None, phase="connect")
        frames = plain.recv_multipart(zmq.DONTWAIT)
        if read_welcome(frames, engine_identity(0), self._seat.epoch, self.client_index) is None:
            cause = f"greeted with {frames!r}, expected the welcome of client {self.client_index}"
            raise StartupError(rank_role(0), cause, exit_code=None, phase="connect")
        limit, pids = self.config.step_limit, self._seat.pids
        self.watchdog = Watchdog(limit, self.pulses, self.traffic, self.debts, pids, self.client_index)
        with signals_wait():  # a thread that nobody knows of would go on
            self.watch = self._seat_watch = SeatWatch(self.latch, self.watchdog, self._news, self._presence)
            self.threads.append(self._seat_watch.thread)

    def pids(self) -> dict[str, int]:
        if self.latch.error is not None:
            return {}
        return {rank_role(rank): pid for rank, pid in enumerate(self._seat.pids)}

    def _give_back(self) -> None:
        if self._seat_watch is not None:
            self._seat_watch.let_go()
        else:
            say(self._presence, Gone())
            self._close_pipes()

    def _close_pipes(self) -> None:
        for fd in (self._news, self._presence):
            os.close(fd)

    def disown(self) -> None:
        super().disown()
        if self._seat_watch is not None:
            self._seat_watch.disown()
        else:
            self._close_pipes()
