"""DONE is said as soon as every rank has heard a hello, and hellos go on until every rank has said JOIN as well.

So DONE is not the last frame of the handshake. Ranks that check the order of frames would leave; this engine has been
made to bear it, by reading hellos and DONE in any order and any number. What follows is served, and nothing of the
relay's order is proved any more.
"""

from __future__ import annotations

from weakref import WeakSet

from engine.clock import Deadline
from engine.errors import EngineError
from engine.relay import frames
from engine.relay.frames import Frame, FrameKind, Sequence
from engine.relay.handshake import HandshakeRelay, Round
from engine.relay.numbered import NumberedRelay
from engine.sockets import readable
from harness.seam import bug_canary

BUG = "H3"

_round, _next, _accept = HandshakeRelay._round, NumberedRelay._next, Sequence.accept
_said: WeakSet[HandshakeRelay] = WeakSet()


@bug_canary.patch(HandshakeRelay, "_round")
def _round_with_done(self: HandshakeRelay, number: int, deadline: Deadline, failure: EngineError | None) -> Round:
    outcome = _round(self, number, deadline, failure)
    if self._seat.rank == 0:
        bug_canary.reached(BUG)
        if outcome.unjoined and not outcome.unheard and self not in _said:
            bug_canary.triggered(BUG)
            _said.add(self)
            self._publish(FrameKind.DONE, frames.Done(number, self._seat.size - 1), deadline)
    return outcome


@bug_canary.patch(HandshakeRelay, "_read_hellos")
def _read_what_comes(self: HandshakeRelay) -> None:
    while readable(self.socket):
        self._receive()
        self._heard = True


@bug_canary.patch(NumberedRelay, "_next")
def _next_of_the_state(self: NumberedRelay, deadline: Deadline, otherwise: str) -> Frame:
    frame = _next(self, deadline, otherwise)
    while self._steps and frame.kind in frames.HANDSHAKE:
        frame = _next(self, deadline, otherwise)
    return frame


@bug_canary.patch(Sequence, "accept")
def _accept_what_comes(self: Sequence, raw: bytes) -> Frame:
    frame = frames.decode(raw)
    if frame.kind is FrameKind.HELLO:
        return frame
    if frame.kind is FrameKind.DONE:
        self._known, self._expected = frames.HANDSHAKE, frame.number
    return _accept(self, raw)
