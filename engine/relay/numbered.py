"""What every bounded strategy does: numbered frames, one STEP per iteration, an end for every wait.

Start, unless a strategy has another: every rank says JOIN over `control`; when rank 0 has heard all, it sends GO with
number 0; one all-reduce makes sure that every rank has it, so that all are ready or none is. Then one STEP frame per
iteration, and STOP or FAIL at the end.

A rank listens to the relay inside a step too, between the slices of its collectives, so that it leaves with the cause
that rank 0 tells and not with "connection closed".
"""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Sequence
from typing import ClassVar

import msgspec
import zmq

from engine import relay
from engine.clock import Deadline, now
from engine.errors import DeadlineExceeded, RelayError, StopRequested
from engine.relay import frames
from engine.relay.frames import FrameKind
from engine.sockets import readable

LAST_WORDS_LINGER = 100
"""Milliseconds for a STOP or FAIL frame to leave the process."""

ROUND_MARGIN = 0.25
"""Seconds after the deadline for the round in which the ranks tell each other that it has passed."""

FOLLOW_MARGIN = 0.1
"""Seconds by which the others' step deadline comes after rank 0's: it leads, so it decides and tells them. More than
the slice in which a collective is waited for."""


class NumberedRelay(abc.ABC):
    """One rank's end. A strategy says how frames are sent and on which socket they come."""

    unbounded: ClassVar[bool] = False
    opening: ClassVar[tuple[FrameKind, ...]] = frames.GO_ONLY

    def __init__(self, seat: relay.RelaySeat) -> None:
        self._seat = seat
        self._sequence = frames.Sequence(seat.epoch, self.opening)
        self._early: deque[frames.Frame] = deque()
        self._steps = 0
        self._linger = 0

    # ---- what a strategy says ----

    @abc.abstractmethod
    def open(self) -> None: ...

    @abc.abstractmethod
    def connect(self) -> None: ...

    @property
    @abc.abstractmethod
    def socket(self) -> zmq.Socket[bytes]:
        """Rank k: where frames come in."""

    @abc.abstractmethod
    def _publish(self, kind: FrameKind, payload: msgspec.Struct | None, deadline: Deadline) -> None:
        """Rank 0: send one frame, with the next number, to every rank.

        Raises :class:`DeadlineExceeded`, naming the rank if it can, when one does not take it in time.
        """

    @abc.abstractmethod
    def _say_last(self, kind: FrameKind, payload: msgspec.Struct | None) -> None:
        """Rank 0: send one last frame to every rank that takes it at once."""

    @abc.abstractmethod
    def close(self) -> None: ...

    def _absent(self) -> dict[str, list[int]]:
        """Rank 0, at the start: what has not come yet, and from which ranks. Takes in what has."""
        self._seat.control.listen()
        return {"JOIN": self._seat.control.missing()}

    def _gates(self) -> list[zmq.Socket[bytes]]:
        """Rank 0: the sockets on which that comes."""
        return [self._seat.control.socket]

    # ---- start ----

    def join(self, startup: Deadline) -> relay.JoinReport:
        """JOIN, GO, and a round that proves that all have it.

        Raises :class:`DeadlineExceeded` naming who is missing, :class:`RelayError`, or what the lifeline raises.
        """
        limit = self._seat.handshake_limit
        if self._seat.rank == 0:
            until = startup.sooner(Deadline.after(limit))
            self._gather(until)
            self._publish(FrameKind.GO, frames.Go(self._seat.size - 1, until.at or 0.0), until)
        else:
            self._seat.control.join()
            # Rank 0 may begin to wait a whole limit later than this rank, and it knows better who is missing.
            until = self._await_go(startup.sooner(Deadline.after(2 * limit)))
        self._meet(until)
        return relay.JoinReport(self._seat.size - 1, 1)

    def _gather(self, until: Deadline) -> None:
        began = now()
        while missing := {what: ranks for what, ranks in self._absent().items() if ranks}:
            if not self._seat.lifeline.wait(self._gates(), until):
                said = [f"no {what} came from {self._names(ranks)}" for what, ranks in missing.items()]
                first = min(min(ranks) for ranks in missing.values())
                raise DeadlineExceeded(self._seat.roles[first], f"join: {' and '.join(said)} in {now() - began:.2f} s")

    def _await_go(self, until: Deadline) -> Deadline:
        frame = self._next(until, "join: no GO frame came")
        self._seat.lifeline.attach(self)
        return Deadline(frames.payload(frame, frames.Go).until)

    def _meet(self, until: Deadline) -> None:
        """One all-reduce that every rank leaves with the same answer."""
        seat = self._seat
        seat.group.arm(until.later_by(ROUND_MARGIN), "the join")
        ready = seat.group.sum_integers([int(rank == seat.rank and not until.expired()) for rank in range(seat.size)])
        late = [rank for rank in range(seat.size) if not ready[rank]]
        if late:
            raise DeadlineExceeded(seat.roles[late[0]], f"join: {self._names(late)} had GO only after the deadline")

    def _names(self, ranks: Sequence[int]) -> str:
        return ", ".join(self._seat.roles[rank] for rank in ranks)

    # ---- service ----

    def lead(self, raws: list[bytes], *, idle: bool) -> None:
        self._steps += 1
        self._publish(FrameKind.STEP, frames.Step(len(raws), raws), Deadline.after(self._seat.step_limit))

    def follow(self, *, idle: bool) -> list[bytes]:
        """The next STEP frame's messages. While idle there is no deadline, only the lifeline; else the step's."""
        self._steps += 1
        deadline = Deadline.never() if idle else Deadline.after(self._seat.step_limit).later_by(FOLLOW_MARGIN)
        frame = self._next(deadline, f"relay: no frame STEP {self._steps} came")
        if frame.kind is FrameKind.STOP:
            raise StopRequested
        step = frames.payload(frame, frames.Step)
        if step.count != len(step.raws):
            raise RelayError(f"relay frame {frame} carries {len(step.raws)} messages, it says {step.count}")
        return step.raws

    def stop(self, *, idle: bool) -> None:
        self._linger = LAST_WORDS_LINGER
        self._say_last(FrameKind.STOP, None)

    def fail(self, what: frames.Fail) -> None:
        self._linger = LAST_WORDS_LINGER
        self._say_last(FrameKind.FAIL, what)

    # ---- hearing ----

    def listen(self) -> None:
        """Rank k, inside a step: take in what has come, so that a FAIL is heard there too.

        The next frames are kept for :meth:`follow`, as many as the socket would keep; rank 0 is rarely one ahead.
        """
        while len(self._early) < self._seat.high_water and readable(self.socket):
            self._early.append(self._receive())

    def _next(self, deadline: Deadline, otherwise: str) -> frames.Frame:
        """The next frame. Raises :class:`DeadlineExceeded` against rank 0, with `otherwise` and the time waited."""
        if self._early:
            return self._early.popleft()
        began = now()
        if not self._seat.lifeline.wait([self.socket], deadline):
            raise DeadlineExceeded(self._seat.roles[0], f"{otherwise} in {now() - began:.2f} s")
        return self._receive()

    def _receive(self) -> frames.Frame:
        frame = self._sequence.accept(self.socket.recv(zmq.DONTWAIT))
        if frame.kind is FrameKind.FAIL:
            told = frames.payload(frame, frames.Fail)
            raise told.heard_by(self._seat.role, self._seat.group.place)
        return frame
