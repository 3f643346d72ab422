"""A relay over one PUB (or XPUB) socket: what the PUB/SUB strategies have in common."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import zmq

from engine import relay
from engine.clock import Deadline
from engine.relay import frames
from engine.relay.frames import FrameKind
from engine.relay.numbered import NumberedRelay


class PublishedRelay(NumberedRelay):
    """Rank 0 publishes at link `relay`, the others subscribe to everything.

    A plain PUB never blocks: a frame for a rank whose queue is full, or that has not subscribed, is dropped, which that
    rank finds out from the next frame's number.
    """

    publisher: ClassVar[int] = zmq.PUB

    def __init__(self, seat: relay.RelaySeat) -> None:
        super().__init__(seat)
        self._number = 0
        """Rank 0: the next frame's number."""
        self._socket = seat.context.socket(self.publisher if seat.rank == 0 else zmq.SUB)
        # Only what is published is limited: a full queue towards the publisher would drop subscriptions.
        self._socket.setsockopt(zmq.SNDHWM if seat.rank == 0 else zmq.RCVHWM, seat.high_water)
        self._socket.setsockopt(zmq.RCVHWM if seat.rank == 0 else zmq.SNDHWM, 0)

    @property
    def socket(self) -> zmq.Socket[bytes]:
        return self._socket

    def open(self) -> None:
        self._socket.bind(self._seat.address("relay"))

    def connect(self) -> None:
        self._socket.connect(self._seat.address("relay"))
        self._socket.subscribe(b"")

    def close(self) -> None:
        self._socket.close(linger=self._linger)

    def _publish(self, kind: FrameKind, payload: msgspec.Struct | None, deadline: Deadline) -> None:
        self._socket.send(self._encode(kind, payload), zmq.DONTWAIT)
        self._number += 1

    def _say_last(self, kind: FrameKind, payload: msgspec.Struct | None) -> None:
        self._socket.send(self._encode(kind, payload), zmq.DONTWAIT)
        self._number += 1

    def _encode(self, kind: FrameKind, payload: msgspec.Struct | None) -> bytes:
        return frames.encode(kind, self._seat.epoch, self._number, payload)
