"""One run: its listeners, its connections, its rules and its ledger, from begin to end."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Sequence

from harness.proxy.address import Address, Doorway, listening, parse
from harness.proxy.attempt import Attempt
from harness.proxy.connection import Connection
from harness.proxy.ledger import Ledger
from harness.proxy.records import Ending, FrameRule, Leg, Parked, Pending, RunEnd, Status
from harness.proxy.rules import RuleBook
from harness.proxy.words import Words

_ACCEPTS = 64  # connections taken from one listener before others get their turn


class Entrance:
    """The listener of one leg; every connection it accepts is an attempt to reach the upstream."""

    def __init__(self, leg: Leg, run: Run) -> None:
        self.leg = leg
        self._run = run
        self._upstream = parse(leg.upstream)
        self._accepted = 0
        self.door = Doorway(leg.listen)
        run.selector.register(self.door.sock, selectors.EVENT_READ, self._on_event)

    def close(self) -> None:
        """Accept no more."""
        self._run.selector.unregister(self.door.sock)
        self.door.close()

    def _on_event(self, mask: int) -> None:
        for _ in range(_ACCEPTS):
            try:
                near, _ = self.door.sock.accept()
            except OSError:  # nobody left, or one that has gone again
                return
            self._accepted += 1
            near.setblocking(False)
            if near.family == socket.AF_INET:
                near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._run.attempt(self.leg, self._accepted, near, self._upstream)


class Run:
    """Raises `ValueError` or `OSError`, and leaves nothing behind, when a leg or a rule cannot be set up."""

    def __init__(
        self, legs: Sequence[Leg], rules: Sequence[FrameRule], words: Words, selector: selectors.BaseSelector
    ) -> None:
        self.selector = selector
        self.ledger = Ledger()
        self.book = RuleBook(rules)
        self._words = words
        self._connections: dict[Connection, None] = {}  # in the order they were made
        self._attempts: dict[Attempt, None] = {}
        self._entrances: list[Entrance] = []
        for leg in legs:
            if not leg.retry > 0:
                raise ValueError(f"leg {leg.link} of {leg.connector}: retry must be seconds above 0, not {leg.retry}")
        for rule in rules:
            if not any(leg.link == rule.link and leg.connector == rule.victim for leg in legs):
                known = ", ".join(f"{leg.link} of {leg.connector}" for leg in legs) or "none"
                raise ValueError(f"rule {rule.index}: no leg {rule.link} of {rule.victim}; there is: {known}")
        try:
            for leg in legs:
                self._entrances.append(_enter(leg, self))
        except BaseException:
            self.close()
            raise

    @property
    def listens(self) -> list[str]:
        """The addresses listened on, in the order of the legs."""
        return [entrance.door.address for entrance in self._entrances]

    def attempt(self, leg: Leg, ordinal: int, near: socket.socket, upstream: Address) -> None:
        """Find the upstream for an accepted socket, now or when it is there."""
        attempt = Attempt(leg, ordinal, near, upstream, self.selector, self.ledger, self._reached)
        self._attempts[attempt] = None
        attempt.dial()

    def signal(self, index: int) -> None:
        """A signal came: what the rule holds may go, now and later."""
        state = self.book.states.get(index)
        if state is None or not state.rule.until_signal:
            self.ledger.trouble(f"signal {index}: no rule of that index waits for a signal")
            return
        self._open(index, "signal")

    def release(self, index: int) -> None:
        """The same by command. Raises `ValueError` for an unknown rule."""
        if index not in self.book.states:
            known = ", ".join(map(str, self.book.states)) or "none"
            raise ValueError(f"no rule {index} to release; there is: {known}")
        self._open(index, "command")

    def heal(self) -> None:
        """Let go every hold; no rule acts from now on."""
        self.book.disarm()
        for index in self.book.states:
            holds = self.book.of(index)
            if holds:
                self.ledger.released(index, "heal", len(holds))
        self.book.let_go(list(self.book.holds))

    def next_timer_ns(self) -> int | None:
        """When there is next something to do: a hold to end by time, or an upstream to try again."""
        times = [attempt.retry_at_ns for attempt in self._attempts] if self._attempts else []
        times.append(self.book.next_timer_ns())
        return min((time for time in times if time is not None), default=None)

    def fire_timers(self, instant: int) -> bool:
        """Do what is due; whether anything was."""
        retries = [a for a in self._attempts if a.retry_at_ns is not None and a.retry_at_ns <= instant]
        for attempt in retries:
            attempt.dial()
        due = self.book.due(instant)
        for hold in due:
            self.ledger.released(hold.state.rule.index, "time", 1)
        self.book.let_go(due)
        return bool(due or retries)

    def status(self, drained: bool) -> Status:
        """The run as it is; `drained` says whether everything readable has been read."""
        pending = [
            Pending(flow.leg.link, flow.leg.connector, flow.direction, flow.pending)
            for connection in self._connections
            for flow in (connection.to_binder, connection.to_connector)
            if flow.pending
        ]
        parked = [
            Parked(a.leg.link, a.leg.connector, a.since_ns, a.retry_at_ns)
            for a in self._attempts
            if a.retry_at_ns is not None
        ]
        # The binder may have bound since the last try: then a connection is on its way.
        joining = len(parked) < len(self._attempts) or any(listening(a.upstream) for a in self._attempts)
        return Status(
            quiet=drained and not pending and not joining,
            pending_bytes=sum(entry.bytes for entry in pending),
            pending=pending,
            held=self.book.held(),
            next_timer_ns=self.book.next_timer_ns(),
            rules=self.book.counts(),
            records=len(self.ledger.records),
            parked=parked,
        )

    def close(self) -> None:
        """Close every socket and remove every path; what is held is discarded."""
        for entrance in self._entrances:
            entrance.close()
        for attempt in list(self._attempts):
            attempt.close("proxy")
        for connection in list(self._connections):
            connection.close("proxy")

    def result(self) -> RunEnd:
        """The whole ledger and the counts."""
        return RunEnd(self.ledger.records, self.book.counts())

    def _open(self, index: int, by: Ending) -> None:
        self.book.states[index].open = True
        holds = self.book.of(index)
        self.ledger.released(index, by, len(holds))
        self.book.let_go(holds)

    def _reached(self, attempt: Attempt, far: socket.socket | None) -> None:
        self._attempts.pop(attempt, None)
        if far is None:
            return
        connection = Connection(
            attempt.leg,
            attempt.ordinal,
            attempt.near,
            far,
            self.selector,
            self.book,
            self.ledger,
            self._words,
            self._forget,
        )
        self._connections[connection] = None

    def _forget(self, connection: Connection) -> None:
        self._connections.pop(connection, None)


def _enter(leg: Leg, run: Run) -> Entrance:
    try:
        return Entrance(leg, run)
    except OSError as error:
        raise ValueError(
            f"cannot listen at {leg.listen} for {leg.link} of {leg.connector}: {error.strerror or error}"
        ) from error
