"""The relay as it was before the handshake: the whole path of the seed report, kept to be broken.

PUB/SUB without any wait at the start. Request messages are published as they came; how many more belong to the
iteration is told by a gloo broadcast. A message published before rank k's subscription has arrived is lost: rank 0 then
waits in the broadcast for a rank that waits in its receive. No wait here has slices or a deadline; only the lifeline
thread can end one. It is the one strategy without a step deadline.
"""

from __future__ import annotations

from typing import ClassVar

import zmq

from engine import relay
from engine.clock import Deadline
from engine.errors import StopRequested
from engine.messages import MessageType
from engine.relay.frames import Fail

STOP_LINGER = 100
"""Milliseconds for the stop message to leave the process."""


@relay.register("unsynchronised")
class UnsynchronisedRelay:
    """One rank's end of the unsynchronised strategy."""

    unbounded: ClassVar[bool] = True

    def __init__(self, seat: relay.RelaySeat) -> None:
        self._seat = seat
        self._linger = 0
        self._socket = seat.context.socket(zmq.PUB if seat.rank == 0 else zmq.SUB)
        self._socket.set_hwm(seat.high_water)

    def open(self) -> None:
        self._socket.bind(self._seat.address("relay"))

    def connect(self) -> None:
        self._socket.connect(self._seat.address("relay"))
        self._socket.subscribe(b"")

    def join(self, startup: Deadline) -> relay.JoinReport:
        """Nobody asks whether anybody listens."""
        return relay.JoinReport(0, 0)

    def lead(self, raws: list[bytes], *, idle: bool) -> None:
        rest = raws
        if idle:
            self._socket.send(raws[0])
            rest = raws[1:]
        self._seat.group.broadcast_integer(len(rest), root=0)
        for raw in rest:
            self._socket.send(raw)

    def follow(self, *, idle: bool) -> list[bytes]:
        raws = [self._receive()] if idle else []
        count = self._seat.group.broadcast_integer(0, root=0)
        raws.extend(self._receive() for _ in range(count))
        return raws

    def stop(self, *, idle: bool) -> None:
        self._linger = STOP_LINGER
        if not idle:
            self._seat.group.broadcast_integer(1, root=0)
        self._socket.send(MessageType.STOP.value)

    def fail(self, what: Fail) -> None:
        """This relay has no way to say so; the launcher tells the ranks."""

    def close(self) -> None:
        self._socket.close(linger=self._linger)

    def _receive(self) -> bytes:
        with self._seat.lifeline.native():
            raw = self._socket.recv()
        if raw == MessageType.STOP.value:
            raise StopRequested
        return raw
