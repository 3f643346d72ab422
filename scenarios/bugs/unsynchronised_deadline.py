"""The relay `unsynchronised-deadline`: a timeout is put where an answer was missing.

The relay before the handshake, with a deadline on each of its waits and a word to the others when one has run out. The
first request can still be lost; what was a wedge is now an error after the step's deadline. But the error names nobody:
rank 0 waited in a collective for "the others", and the rank that lost the frame does not know that it did. The caller
reads that something was not finished in time, and nobody learns where to look.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import zmq

from engine import relay
from engine.clock import Deadline
from engine.errors import DeadlineExceeded, PeerFailed, StopRequested
from engine.messages import MessageType
from engine.relay.frames import Fail, Place
from engine.relay.unsynchronised import STOP_LINGER, UnsynchronisedRelay
from harness.seam import bug_canary

BUG = "H7"

GIVE_UP = b"\x07"
"""Type byte of rank 0's word that it gives up. There is nothing in it."""


_NOWHERE = property(lambda group: Place(0, 0.0, False))


@relay.register("unsynchronised-deadline")
class UnsynchronisedDeadlineRelay(UnsynchronisedRelay):
    """One rank's end of the strategy."""

    unbounded: ClassVar[bool] = False

    def __init__(self, seat: relay.RelaySeat) -> None:
        super().__init__(seat)
        # The engine keeps account of who came late to which collective, and would name somebody after all.
        type(seat.group).place = _NOWHERE  # type: ignore[method-assign, assignment]

    def lead(self, raws: list[bytes], *, idle: bool) -> None:
        bug_canary.reached(BUG)
        with _anonymous():
            super().lead(raws, idle=idle)

    def follow(self, *, idle: bool) -> list[bytes]:
        raws = [self._receive_before(Deadline.never())] if idle else []
        deadline = Deadline.after(self._seat.step_limit)
        self._seat.group.arm(deadline, "the count of requests")
        with _anonymous():
            count = self._seat.group.broadcast_integer(0, root=0)
        raws.extend(self._receive_before(deadline) for _ in range(count))
        return raws

    def fail(self, what: Fail) -> None:
        bug_canary.triggered(BUG)
        self._linger = STOP_LINGER
        self._socket.send(GIVE_UP, zmq.DONTWAIT)

    def _receive_before(self, deadline: Deadline) -> bytes:
        if not self._seat.lifeline.wait([self._socket], deadline):
            raise DeadlineExceeded("", "a request was not received before the deadline")
        raw = self._socket.recv(zmq.DONTWAIT)
        if raw == MessageType.STOP.value:
            raise StopRequested
        if raw == GIVE_UP:
            raise PeerFailed("", "rank 0 has given up")
        return raw


@contextmanager
def _anonymous() -> Iterator[None]:
    """A deadline in here says that it has passed, and not who was waited for."""
    try:
        yield
    except DeadlineExceeded as error:
        raise DeadlineExceeded("", error.cause) from error
