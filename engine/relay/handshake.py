"""PUB/SUB with a handshake, then one numbered frame per iteration.

A PUB socket drops what nobody subscribes to yet, and connecting does not wait for the subscription to arrive. So rank 0
publishes hellos until every rank has heard one, and only then DONE: on one connection frames keep their order, so
whatever follows DONE is heard. The protocol is the seed report's; its limits are repaired so:

- every rank has the same wall-clock deadline for every wait, DONE included (rank 0's, carried in each round);
- one all-reduce a round tells all ranks the same verdict: who has joined, who has failed, so all go on or all raise;
- a rank has joined only when its JOIN has come over `control` too, which says that it is the same engine;
- frames carry epoch, number and checksum, and a wrong one raises :class:`engine.errors.RelayError`;
- failure of a rank is told to all others.

A rank that has joined goes on reading hellos, so that a slow start of another rank cannot fill its queue and push DONE
out of it. In service a PUB still drops frames for a rank whose queue is full: that is an error, not a wedge, but
:mod:`engine.relay.pushpull` does not have it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from engine import relay
from engine.clock import Deadline, now
from engine.errors import DeadlineExceeded, EngineError, PeerFailed, RelayError
from engine.lifeline import LAST_WORD
from engine.relay import frames
from engine.relay.frames import FrameKind
from engine.relay.numbered import ROUND_MARGIN
from engine.relay.published import PublishedRelay
from engine.sockets import readable

HELLO_POLL = 0.02
"""Seconds that a rank without a hello waits for one before the next round."""

_BROKEN = 2
"""A rank's state in a round: 0 well, 1 its deadline has passed, 2 it has an error of its own."""


@dataclass(frozen=True, slots=True)
class Round:
    """What one round has told all ranks alike.

    Ranks that have heard no hello, that have not said JOIN, that have failed; whether anybody's deadline has passed;
    which rank came to the round last, and how many seconds after the first; rank 0's deadline.
    """

    unheard: list[int]
    unjoined: list[int]
    broken: list[int]
    expired: bool
    last: int
    lag: float
    deadline: Deadline


@relay.register("handshake")
class HandshakeRelay(PublishedRelay):
    """One rank's end of the handshake strategy."""

    opening: ClassVar[tuple[FrameKind, ...]] = frames.HANDSHAKE

    def __init__(self, seat: relay.RelaySeat) -> None:
        super().__init__(seat)
        self._number = 1
        self._heard = False
        self._lag = (0.0, 0)

    def join(self, startup: Deadline) -> relay.JoinReport:
        """Rounds until every rank has joined, then DONE.

        Raises :class:`DeadlineExceeded` naming the missing ranks, :class:`RelayError`, or :class:`PeerFailed`.
        """
        began = now()
        deadline = startup.sooner(Deadline.after(self._seat.handshake_limit))
        others = self._seat.size - 1
        rounds = 0
        if self._seat.rank > 0:
            self._seat.control.join()
        while True:
            rounds += 1
            failure = self._hear_or_say_hello(deadline)
            try:
                outcome = self._round(rounds, deadline, failure)
            except PeerFailed:
                # Rank 0 leaves in the middle of a round when `control` says so; the others may have been told why.
                while self._seat.rank > 0 and readable(self.socket):
                    self._receive()
                raise
            if outcome.broken or outcome.expired:
                raise failure or self._verdict(outcome, rounds, now() - began)
            deadline = outcome.deadline
            self._lag = max(self._lag, (outcome.lag, outcome.last))
            if not outcome.unheard and not outcome.unjoined:
                break
        if self._seat.rank == 0:
            try:
                self._publish(FrameKind.DONE, frames.Done(rounds, others), deadline)
            finally:
                self._number = 1  # also of a FAIL, should it be unknown whether DONE went
            return relay.JoinReport(others, rounds)
        # The round may have taken the last of the time; DONE is on its way then.
        return self._await_done(deadline.later_by(ROUND_MARGIN))

    def _hear_or_say_hello(self, deadline: Deadline) -> EngineError | None:
        """This rank's part before a round; an error is kept for the round, so that all ranks leave it together."""
        seat = self._seat
        try:
            if seat.rank == 0:
                self._publish(FrameKind.HELLO, None, deadline)
                seat.lifeline.check(stop=False)
            elif self._heard:
                seat.lifeline.check(stop=False)
                self._read_hellos()
            elif seat.lifeline.wait([self.socket], Deadline.after(HELLO_POLL).sooner(deadline)):
                self._read_hellos()
        except (RelayError, PeerFailed) as error:
            return error
        return None

    def _read_hellos(self) -> None:
        while readable(self.socket):
            frame = self._receive()
            if frame.kind is not FrameKind.HELLO:
                raise RelayError(f"relay frame {frame} before all ranks have joined")
            self._heard = True

    def _round(self, number: int, deadline: Deadline, failure: EngineError | None) -> Round:
        """One all-reduce: every rank says how it stands, rank 0 also who has said JOIN and what its deadline is."""
        seat = self._seat
        first = seat.rank == 0
        seat.group.arm(deadline.later_by(ROUND_MARGIN), f"handshake round {number}")
        state = _BROKEN if failure is not None else int(deadline.expired())
        own = [int(rank == seat.rank) for rank in range(seat.size)]
        absent = seat.control.missing() if first else []
        total = seat.group.sum_integers(
            [one * int(first or self._heard) for one in own]
            + [one * state for one in own]
            + [int(rank in absent) for rank in range(seat.size)]
            + [one * int(now() * 1_000_000) for one in own]
            + [int((deadline.at or now()) * 1_000_000) if first else 0]
        )
        heard, states, unjoined, entered = (total[part * seat.size : (part + 1) * seat.size] for part in range(4))
        last = max(range(seat.size), key=entered.__getitem__)
        return Round(
            unheard=[rank for rank, count in enumerate(heard) if not count],
            unjoined=[rank for rank, count in enumerate(unjoined) if count],
            broken=[rank for rank, state in enumerate(states) if state == _BROKEN],
            expired=any(states) or entered[last] > total[-1],
            last=last,
            lag=(entered[last] - min(entered)) / 1_000_000,
            deadline=Deadline(total[-1] / 1_000_000),
        )

    def _verdict(self, outcome: Round, rounds: int, seconds: float) -> EngineError:
        """The error with which a rank that has none of its own leaves a round that has failed.

        Whoever took most of the time for itself is to blame, then whoever has not joined in all of it.
        """
        roles, spent = self._seat.roles, f"in {rounds} rounds and {seconds:.2f} s"
        lag, last = max(self._lag, (outcome.lag, outcome.last))
        if outcome.broken:
            self._await_cause()
            return PeerFailed(roles[outcome.broken[0]], f"failed in the handshake, {spent}")
        if lag > seconds / 2:
            return DeadlineExceeded(roles[last], f"handshake: {roles[last]} came {lag:.2f} s after the others, {spent}")
        for what, ranks in (("hello reached", outcome.unheard), ("JOIN came from", outcome.unjoined)):
            if ranks:
                return DeadlineExceeded(roles[ranks[0]], f"handshake: no {what} {self._names(ranks)} {spent}")
        return DeadlineExceeded("", f"handshake: the deadline passed {spent}")

    def _await_cause(self) -> None:
        """Whoever has failed is about to say how, to rank 0 over `control`, to the others over the relay."""
        if self._seat.rank == 0:
            self._seat.lifeline.last_word()
            return
        moment = Deadline.after(LAST_WORD)
        while self._seat.lifeline.wait([self.socket], moment, stop=False):
            self._receive()

    def _await_done(self, deadline: Deadline) -> relay.JoinReport:
        while True:
            frame = self._next(deadline, "handshake: all ranks have joined, but no DONE frame came")
            if frame.kind is FrameKind.DONE:
                self._seat.lifeline.attach(self)
                done = frames.payload(frame, frames.Done)
                return relay.JoinReport(done.joined, done.rounds)
