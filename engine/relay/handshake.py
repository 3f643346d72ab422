"""PUB/SUB with a handshake, then one numbered frame per iteration. The default strategy.

A PUB socket drops what nobody subscribes to yet, and connecting does not wait for the subscription to arrive. So rank 0
publishes hellos until every rank has heard one, and only then DONE: on one connection frames keep their order, so
whatever follows DONE is heard. The protocol is the seed report's; its limits are repaired so:

- every rank has the same wall-clock deadline for every wait, DONE included (rank 0's, carried in each round);
- one all-reduce a round tells all ranks the same verdict: who has joined, who has failed, so all go on or all raise;
- frames carry epoch, number and checksum, and a wrong one raises :class:`engine.errors.RelayError`;
- failure of a rank is told to all others.

A rank that has joined goes on reading hellos, so that a slow start of another rank cannot fill its queue and push DONE
out of it.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

import msgspec
import zmq

from engine import relay
from engine.clock import Deadline, now
from engine.errors import DeadlineExceeded, EngineError, PeerFailed, RelayError, StopRequested
from engine.relay import frames
from engine.relay.frames import FrameKind
from engine.sockets import readable

HELLO_POLL = 0.02
"""Seconds that a rank without a hello waits for one before the next round."""

ROUND_MARGIN = 0.25
"""Seconds after the deadline for the round in which the ranks tell each other that it has passed."""

LAST_WORDS_LINGER = 100
"""Milliseconds for a STOP or FAIL frame to leave the process."""


PayloadT = TypeVar("PayloadT", bound=msgspec.Struct)


@relay.register("handshake")
class HandshakeRelay:
    """One rank's end of the handshake strategy."""

    unbounded: ClassVar[bool] = False

    def __init__(self, seat: relay.RelaySeat) -> None:
        self._seat = seat
        self._sequence = frames.Sequence(seat.epoch)
        self._published = 0
        self._steps = 0
        self._linger = 0
        self._heard = False
        self._socket = seat.context.socket(zmq.PUB if seat.rank == 0 else zmq.SUB)
        self._socket.set_hwm(seat.high_water)

    def open(self) -> None:
        self._socket.bind(self._seat.address)

    def connect(self) -> None:
        self._socket.connect(self._seat.address)
        self._socket.subscribe(b"")

    # ---- start ----

    def join(self, startup: Deadline) -> relay.JoinReport:
        """Rounds until every rank has joined, then DONE.

        Raises :class:`DeadlineExceeded` naming the missing ranks, :class:`RelayError`, or :class:`PeerFailed`.
        """
        deadline = startup.sooner(Deadline.after(self._seat.handshake_limit))
        others = self._seat.size - 1
        rounds = 0
        while True:
            rounds += 1
            failure = self._hear_or_say_hello(rounds, deadline)
            joined, failed, deadline = self._round(rounds, deadline, failure)
            missing = [role for role, here in zip(self._seat.roles, joined, strict=True) if not here]
            if failed:
                raise self._verdict(rounds, failure, failed, missing)
            if not missing:
                break
        if self._seat.rank == 0:
            self._publish(FrameKind.DONE, rounds + 1, frames.Done(rounds, others))
            return relay.JoinReport(others, rounds)
        return self._await_done(deadline)

    def _hear_or_say_hello(self, number: int, deadline: Deadline) -> EngineError | None:
        """This rank's part before a round; an error is kept for the round, so that all ranks leave it together."""
        try:
            if self._seat.rank == 0:
                self._publish(FrameKind.HELLO, number)
                self._seat.lifeline.check(stop=False)
            elif self._heard:
                self._seat.lifeline.check(stop=False)
                self._read_hellos()
            elif self._seat.lifeline.wait(self._socket, Deadline.after(HELLO_POLL).sooner(deadline)):
                self._read_hellos()
        except (RelayError, PeerFailed) as error:
            return error
        return None

    def _read_hellos(self) -> None:
        while readable(self._socket):
            frame = self._receive()
            if frame.kind is not FrameKind.HELLO:
                raise RelayError(f"relay frame {frame} before all ranks have joined")
            self._heard = True

    def _round(
        self, number: int, deadline: Deadline, failure: EngineError | None
    ) -> tuple[list[bool], list[int], Deadline]:
        """One all-reduce. Returns who has joined, which ranks have failed, and the deadline that rank 0 has set."""
        seat = self._seat
        seat.group.arm(deadline.later_by(ROUND_MARGIN), f"handshake round {number}")
        own = [int(rank == seat.rank) for rank in range(seat.size)]
        here = int(seat.rank == 0 or self._heard)
        bad = int(failure is not None or deadline.expired())
        microseconds = int((deadline.at or now()) * 1_000_000) if seat.rank == 0 else 0
        total = seat.group.sum_integers([one * here for one in own] + [one * bad for one in own] + [microseconds])
        joined = [count > 0 for count in total[: seat.size]]
        failed = [rank for rank in range(seat.size) if total[seat.size + rank]]
        return joined, failed, Deadline(total[-1] / 1_000_000)

    def _verdict(self, rounds: int, own: EngineError | None, failed: list[int], missing: list[str]) -> EngineError:
        """The error with which this rank leaves a round that has failed."""
        if own is not None:
            return own
        if missing:
            return DeadlineExceeded(
                missing[0], f"handshake: no hello reached {', '.join(missing)} in {rounds} rounds before the deadline"
            )
        culprit = self._seat.roles[failed[0]]
        return PeerFailed(culprit, f"failed in handshake round {rounds}")

    def _await_done(self, deadline: Deadline) -> relay.JoinReport:
        while True:
            if not self._seat.lifeline.wait(self._socket, deadline):
                raise DeadlineExceeded(
                    self._seat.roles[0], "handshake: all ranks have joined, but no DONE frame came before the deadline"
                )
            frame = self._receive()
            if frame.kind is FrameKind.DONE:
                done = _payload(frame, frames.Done)
                return relay.JoinReport(done.joined, done.rounds)

    # ---- service ----

    def lead(self, raws: list[bytes], *, idle: bool) -> None:
        self._steps += 1
        self._publish(FrameKind.STEP, self._steps, frames.Step(len(raws), raws))

    def follow(self, *, idle: bool) -> list[bytes]:
        """The next STEP frame's messages. While idle there is no deadline, only the lifeline; else the step's."""
        self._steps += 1
        deadline = Deadline.never() if idle else Deadline.after(self._seat.step_limit)
        if not self._seat.lifeline.wait(self._socket, deadline):
            raise DeadlineExceeded(self._seat.roles[0], f"relay: no frame for step {self._steps} before its deadline")
        frame = self._receive()
        if frame.kind is FrameKind.STOP:
            raise StopRequested
        step = _payload(frame, frames.Step)
        if step.count != len(step.raws):
            raise RelayError(f"relay frame {frame} carries {len(step.raws)} messages, it says {step.count}")
        return step.raws

    def stop(self, *, idle: bool) -> None:
        self._linger = LAST_WORDS_LINGER
        self._publish(FrameKind.STOP, self._steps + 1)

    def fail(self, culprit: str, cause: str) -> None:
        self._linger = LAST_WORDS_LINGER
        self._publish(FrameKind.FAIL, self._steps + 1, frames.Fail(culprit, cause))

    def close(self) -> None:
        self._socket.close(linger=self._linger)

    # ---- both ----

    def _publish(self, kind: FrameKind, number: int, payload: msgspec.Struct | None = None) -> None:
        self._socket.send(frames.encode(kind, self._seat.epoch, number, payload), zmq.DONTWAIT)

    def _receive(self) -> frames.Frame:
        frame = self._sequence.accept(self._socket.recv(zmq.DONTWAIT))
        if frame.kind is FrameKind.FAIL:
            told = _payload(frame, frames.Fail)
            raise PeerFailed(told.culprit, told.cause)
        return frame


def _payload(frame: frames.Frame, kind: type[PayloadT]) -> PayloadT:
    try:
        return msgspec.msgpack.decode(frame.payload, type=kind)
    except msgspec.MsgspecError as error:
        raise RelayError(f"relay frame {frame} carries an unreadable payload: {error}") from error
