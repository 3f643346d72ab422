"""One run: its listeners, its connections, its rules and its ledger, from begin to end."""

from __future__ import annotations

import selectors
import socket
from collections import Counter
from collections.abc import Sequence

from harness.proxy.address import Address, Doorway, listening, parse
from harness.proxy.attempt import Attempt
from harness.proxy.connection import Connection
from harness.proxy.ledger import Ledger
from harness.proxy.records import Ending, FrameRule, Leg, Parked, Pending, RunEnd, Status
from harness.proxy.rules import Hold, RuleBook, RuleState
from harness.proxy.words import Words

_ACCEPTS = 64  # connections taken from one listener before others get their turn


class Entrance:
    """The listener of one leg; every connection it accepts is an attempt to reach the upstream.

    While a rule refuses connections nobody listens: the path is gone, the port closed.
    """

    def __init__(self, leg: Leg, run: Run) -> None:
        self.leg = leg
        self._run = run
        self._upstream = parse(leg.upstream)
        self._accepted = 0
        self._holds: list[Hold] = []
        self._address = leg.listen
        self._door: Doorway | None = self._listen(leg.listen)

    @property
    def address(self) -> str:
        """Where connections are accepted, or would be."""
        return self._address

    def close(self) -> None:
        """Accept no more."""
        if self._door is not None:
            self._run.selector.unregister(self._door.sock)
            self._door.close()
            self._door = None

    def refuse(self, hold: Hold) -> None:
        """Accept no more until the hold is open."""
        self._holds.append(hold)
        self.close()

    def advance(self) -> None:
        """Listen again if nothing forbids it any more."""
        self._holds = [hold for hold in self._holds if not hold.open]
        if self._door is None and not self._holds:
            try:
                self._door = self._listen(self._address)
            except OSError as error:
                why = f"cannot listen at {self._address} again: {error.strerror or error}"
                self._run.ledger.trouble(why, self.leg.link, self.leg.connector)

    def kept(self) -> dict[Hold, int]:
        """No frame: it is connections that are kept out."""
        return {}

    def _listen(self, text: str) -> Doorway:
        door = Doorway(text)
        self._address = door.address
        self._run.selector.register(door.sock, selectors.EVENT_READ, self._on_event)
        return door

    def _on_event(self, mask: int) -> None:
        for _ in range(_ACCEPTS):
            if self._door is None:
                return
            try:
                near, _ = self._door.sock.accept()
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
            _check_leg(rule, legs)
        try:
            for leg in legs:
                self._entrances.append(_enter(leg, self))
        except BaseException:
            self.close()
            raise
        for state in self.book.states.values():
            self._begin(state)

    @property
    def listens(self) -> list[str]:
        """The addresses listened on, in the order of the legs."""
        return [entrance.address for entrance in self._entrances]

    def attempt(self, leg: Leg, ordinal: int, near: socket.socket, upstream: Address) -> None:
        """Find the upstream for an accepted socket, now or when it is there."""
        attempt = Attempt(leg, ordinal, near, upstream, self.selector, self.ledger, self._reached)
        self._attempts[attempt] = None
        attempt.dial()

    def add(self, rule: FrameRule) -> None:
        """One more rule, in force from now on. Raises `ValueError`."""
        _check_leg(rule, [entrance.leg for entrance in self._entrances])
        self._begin(self.book.add(rule))

    def withdraw(self, index: int) -> None:
        """The rule acts no more, and lets go what it holds; its counts stay. Raises `ValueError` for an unknown one."""
        state = self._known(index, "withdraw")
        self.book.disarm(state)
        self._open(state, "withdraw")

    def signal(self, index: int) -> None:
        """A signal came: what the rule holds may go, now and later."""
        state = self.book.states.get(index)
        if state is None or not state.rule.until_signal:
            self.ledger.trouble(f"signal {index}: no rule of that index waits for a signal")
            return
        self._open(state, "signal")

    def release(self, index: int) -> None:
        """The same by command. Raises `ValueError` for an unknown rule."""
        self._open(self._known(index, "release"), "command")

    def heal(self) -> None:
        """Let go every hold; no rule that there is acts from now on."""
        self.book.disarm()
        self._let_go(self.book.of(), "heal")

    def next_timer_ns(self) -> int | None:
        """When there is next something to do: a hold to end by time, bytes to go, or an upstream to try again."""
        hold = self.book.next_timer_ns()
        if not self._attempts and not self.book.slowed:
            return hold
        times = [hold, *(attempt.retry_at_ns for attempt in self._attempts)]
        times += [flow.due_ns() for flow in self.book.slowed]
        return min((time for time in times if time is not None), default=None)

    def fire_timers(self, instant: int) -> bool:
        """Do what is due; whether anything was."""
        due_ns = self.next_timer_ns()
        if due_ns is None or due_ns > instant:
            return False
        retries = [a for a in self._attempts if a.retry_at_ns is not None and a.retry_at_ns <= instant]
        for attempt in retries:
            attempt.dial()
        ready = [flow for flow in self.book.slowed if (at := flow.due_ns()) is not None and at <= instant]
        for flow in ready:
            flow.proceed()
        due = self.book.due(instant)
        self._let_go(due, "time")
        return True

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

    def _begin(self, state: RuleState) -> None:
        """What a rule does before any frame."""
        if state.rule.action == "refuse" and not state.rule.kind:
            state.reached += 1
            state.fired += 1
            self._refuse(state)

    def _refuse(self, state: RuleState) -> None:
        for entrance in self._entrances:
            if (entrance.leg.link, entrance.leg.connector) == (state.rule.link, state.rule.victim):
                entrance.refuse(self.book.catch(state, entrance))

    def _known(self, index: int, verb: str) -> RuleState:
        if index not in self.book.states:
            known = ", ".join(map(str, self.book.states)) or "none"
            raise ValueError(f"no rule {index} to {verb}; there is: {known}")
        return self.book.states[index]

    def _open(self, state: RuleState, by: Ending) -> None:
        state.open = True
        holds = self.book.of(state.rule.index)
        self.ledger.released(state.rule.index, by, len(holds))
        self.book.hasten(state)
        self.book.let_go(holds)

    def _let_go(self, holds: list[Hold], by: Ending) -> None:
        for index, count in Counter(hold.state.rule.index for hold in holds).items():
            self.ledger.released(index, by, count)
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
            self._refuse,
            self._forget,
        )
        self._connections[connection] = None

    def _forget(self, connection: Connection) -> None:
        self._connections.pop(connection, None)


def _check_leg(rule: FrameRule, legs: Sequence[Leg]) -> None:
    if not any(leg.link == rule.link and leg.connector == rule.victim for leg in legs):
        known = ", ".join(f"{leg.link} of {leg.connector}" for leg in legs) or "none"
        raise ValueError(f"rule {rule.index}: no leg {rule.link} of {rule.victim}; there is: {known}")


def _enter(leg: Leg, run: Run) -> Entrance:
    try:
        return Entrance(leg, run)
    except OSError as error:
        raise ValueError(
            f"cannot listen at {leg.listen} for {leg.link} of {leg.connector}: {error.strerror or error}"
        ) from error
