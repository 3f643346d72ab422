"""PUB/SUB in which rank 0 counts who has subscribed, and does not drop.

An XPUB receives every subscription as a message, with XPUB_VERBOSE also one for a topic that another subscriber has
already. That tells how many have subscribed, not who. So every rank subscribes first to everything and then to a topic
of its own, on the same connection: when its own topic arrives, the subscription before it is in force, and at the
deadline the missing ranks have names.

With XPUB_NODROP a frame that does not fit into one rank's queue is not sent to any; rank 0 tries until the step's
deadline. It cannot see which rank is full, so with several others the error names none of them; the launcher finds the
one that stays silent.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
import zmq

from engine import relay
from engine.clock import Deadline, now
from engine.errors import DeadlineExceeded, RelayError
from engine.relay.frames import FrameKind
from engine.relay.published import PublishedRelay
from engine.sockets import readable

SEND_SLICE = 50
"""Milliseconds of one attempt to send while a queue is full; between attempts rank 0 listens."""

TOPIC = b"rank:"
"""A rank's own topic is this, the epoch in hexadecimal, a colon, its number. No frame begins so."""


@relay.register("subscribed")
class SubscribedRelay(PublishedRelay):
    """One rank's end of the subscribed strategy."""

    publisher: ClassVar[int] = zmq.XPUB

    def __init__(self, seat: relay.RelaySeat) -> None:
        super().__init__(seat)
        self._subscribed: set[int] = set()
        if seat.rank == 0:
            self._socket.setsockopt(zmq.XPUB_VERBOSE, 1)
            self._socket.setsockopt(zmq.XPUB_NODROP, 1)
            self._socket.sndtimeo = SEND_SLICE

    def connect(self) -> None:
        super().connect()
        self._socket.subscribe(self._topic(self._seat.rank))

    def _absent(self) -> dict[str, list[int]]:
        while readable(self._socket):
            self._take_subscription(self._socket.recv(zmq.DONTWAIT))
        return {
            **super()._absent(),
            "subscription": [rank for rank in range(1, self._seat.size) if rank not in self._subscribed],
        }

    def _gates(self) -> list[zmq.Socket[bytes]]:
        return [*super()._gates(), self._socket]

    def _take_subscription(self, message: bytes) -> None:
        if message[:1] != b"\x01" or not message[1:].startswith(TOPIC):
            return
        for rank in range(1, self._seat.size):
            if message[1:] == self._topic(rank):
                self._subscribed.add(rank)
                return
        raise RelayError(
            f"relay: somebody subscribed to {message[1:]!r}, expected {self._topic(1)!r} or that of another rank"
        )

    def _topic(self, rank: int) -> bytes:
        return TOPIC + f"{self._seat.epoch:016x}:{rank}".encode()

    def _publish(self, kind: FrameKind, payload: msgspec.Struct | None, deadline: Deadline) -> None:
        frame = self._encode(kind, payload)
        began = now()
        while not self._offer(frame):
            self._seat.lifeline.check(stop=False)
            if deadline.expired():
                raise DeadlineExceeded(
                    self._seat.group.peer_of(),
                    f"relay: frame {kind.name} {self._number} could not be sent in {now() - began:.2f} s: "
                    f"the queue of {self._names(range(1, self._seat.size)).replace(', ', ' or ')} is full",
                )
        self._number += 1

    def _offer(self, frame: bytes) -> bool:
        try:
            self._socket.send(frame)
        except zmq.Again:
            return False
        return True

    def _say_last(self, kind: FrameKind, payload: msgspec.Struct | None) -> None:
        self._socket.setsockopt(zmq.XPUB_NODROP, 0)  # those who have room are told
        super()._say_last(kind, payload)
