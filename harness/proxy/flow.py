"""One direction of one connection: bytes in, units past the rules, bytes out; what is held waits in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeGuard

from harness.clock import now
from harness.proxy.actions import ACTIONS
from harness.proxy.ledger import Ledger
from harness.proxy.pace import Pace
from harness.proxy.records import UNKNOWN, Direction, Fate, Leg, Seen, Trouble
from harness.proxy.rules import Hold, RuleBook, RuleState, Unit
from harness.proxy.words import WordError, Words
from harness.zmtp import Assembler, Frame, Message, ZmtpError, encode_message
from harness.zmtp import Unit as Unread

_SUBSCRIBERS = (b"SUB", b"XSUB")


class Queued:
    """A unit that waits. `hold` is its own, if it was caught itself; `rule` is the one whose hold it waits for."""

    __slots__ = ("hold", "rule", "unit")

    def __init__(self, unit: Unit, rule: int, hold: Hold | None) -> None:
        self.unit = unit
        self.rule = rule
        self.hold = hold

    @property
    def stays(self) -> bool:
        """Whether the unit may not go yet."""
        return self.hold is not None and not self.hold.open


class Flow:
    """Bytes read from one side become units, meet the rules, and end in `out`, which the connection writes.

    `on_output` is called when something that was held has been put in `out`, or may be read or written again; `refuse`
    when a rule wants the leg to take no new connection.
    """

    def __init__(
        self,
        leg: Leg,
        direction: Direction,
        connection: int,
        book: RuleBook,
        ledger: Ledger,
        words: Words,
        on_output: Callable[[], None],
        refuse: Callable[[RuleState], None],
    ) -> None:
        self.leg = leg
        self.direction: Direction = direction
        self.out = bytearray()
        self.severed = False
        """Whether a rule has broken the connection: what is in `out` still goes, nothing else does."""
        self.refuse = refuse
        self._connection = connection
        self._book = book
        self._ledger = ledger
        self._words = words
        self._on_output = on_output
        self._tally = book.tally(leg.link, leg.connector, direction)
        self._assembler = Assembler()
        self._queue: deque[Queued] = deque()
        self._aside: list[Queued] = []
        self._stall: Hold | None = None
        self._pace: Pace | None = None  # how fast `out` may be written
        self._from_subscriber = False
        self._opaque = False  # the bytes are not ZMTP: pass them on as they come
        self._word_failed = False

    @property
    def pending(self) -> int:
        """Bytes read and not yet written, held ones not counted, nor what a stall leaves unfinished."""
        return len(self.out) + (0 if self.stalled else self._assembler.pending)

    @property
    def waiting(self) -> bool:
        """Whether anything is held."""
        return bool(self._queue or self._aside)

    @property
    def stalled(self) -> bool:
        """Whether no more is to be read."""
        return self._stall is not None and not self._stall.open

    @property
    def resting(self) -> bool:
        """Whether what is in `out` has to wait for its time."""
        return not self.room()

    # ---- bytes ----

    def receive(self, data: bytes) -> Sequence[Message]:
        """Take bytes from the sending side; returns messages that may go at once, which are not in `out`.

        Where no rule watches and nothing waits, messages need not wait for their names: `note` them when they are gone.
        """
        if self._opaque:
            self._pass_opaque(data)
            return ()
        rest = b""
        try:
            units: Sequence[Unread] = self._assembler.feed(data)
        except ZmtpError as error:
            units, rest = error.items, error.rest
            self._opaque = True
            self._trouble(f"{error}; passed on unread from here")
        else:
            if self._passes(units):
                return units
        self._ledger.catch_up()  # so that all are counted in the order in which they came
        self._meet(units)
        if rest:
            self._pass_opaque(rest)
        return ()

    def note(self, messages: Sequence[Message], arrived: int) -> None:
        """Put messages in the ledger that have gone on; they came at `arrived`."""
        leg, direction, connection = self.leg, self.direction, self._connection
        link, connector = leg.link, leg.connector
        add, count, name = self._ledger.add, self._tally.count, self._words.name
        for message in messages:
            frames = message.frames
            if len(frames) == 1:
                bodies, size = [frames[0].body], len(frames[0].raw)
            else:
                bodies, size = message.bodies, len(message.raw)
            try:
                kind, number = name(link, direction, bodies)
            except WordError as error:
                self._word_trouble(error)
                kind, number = UNKNOWN, None
            add(Seen(arrived, link, connector, direction, connection, kind, number, count(kind), size, "passed", None))

    def _passes(self, units: Sequence[Unread]) -> TypeGuard[Sequence[Message]]:
        """Whether these are messages alone, and nothing here asks what they are before they go on."""
        if self.out or self._queue or self._aside or self.severed or self._from_subscriber:
            return False
        if self._tally.watched or self._pace is not None:
            return False
        for unit in units:  # noqa: SIM110 (all() with a generator takes far longer for one unit)
            if type(unit) is not Message:
                return False
        return True

    def _meet(self, units: Sequence[Unread]) -> None:
        for unit in units:
            if type(unit) is Message:
                self._message(unit)
            elif type(unit) is Frame:
                self._command(unit)
            else:
                self.out += unit.raw

    def finish(self) -> None:
        """The sending side has ended: what is held is discarded, an unfinished frame is passed on as it is.

        What the clock lets go still arrives, unless it waits for something that only an instant or the end would.
        """
        on_its_way = 0
        for queued in self._queue:
            if queued.stays and queued.hold is not None and queued.hold.release_at_ns is None:
                break
            on_its_way += 1
        self._discard(on_its_way)
        rest = self._assembler.flush()
        if rest:
            self._pass_opaque(rest)

    def abandon(self) -> int:
        """The receiving side has gone: give up everything, and return how many bytes had passed the rules in vain."""
        self._discard()
        self._book.slowed.pop(self, None)
        lost = len(self.out) + len(self._assembler.flush())
        self.out.clear()
        return lost

    def room(self) -> int:
        """How many bytes of `out` may be written now."""
        return len(self.out) if self._pace is None else min(self._pace.allowed(), len(self.out))

    def sent(self, size: int) -> None:
        """So many bytes of `out` have been written."""
        del self.out[:size]
        if self._pace is not None:
            self._pace.spent(size)

    # ---- what actions do ----

    def forward(self, unit: Unit, rule: int | None = None, fate: Fate = "passed") -> None:
        """Send the unit on, behind anything that is held."""
        if self._queue:
            before = self._queue[-1].rule
            self._queue.append(Queued(unit, before, None))
            self._record(unit, "held", before)
        else:
            self.out += unit.raw
            self._record(unit, fate, rule)
        if self._aside:
            self._bring_back(self._aside)

    def inject(self, parts: Sequence[bytes], rule: int) -> None:
        """Send a message that nobody has sent, behind anything that is held."""
        kind, number = self._name(parts)
        self.forward(Unit(kind, number, 0, encode_message(parts)), rule, "injected")

    def moved(self, message: Message) -> Sequence[bytes] | None:
        """The parts of a message as a foreign run would have sent it; None if that cannot be said."""
        try:
            return self._words.moved(self.leg.link, message.bodies)
        except WordError as error:
            self._word_trouble(error)
            return None

    def drop(self, unit: Unit, rule: int) -> None:
        """Make an end of the unit."""
        self._record(unit, "dropped", rule)

    def sever(self, unit: Unit, rule: int) -> None:
        """Make an end of the unit and of the whole connection: nothing that comes behind it is sent on."""
        self.severed = True
        self._record(unit, "dropped", rule)

    def hold(self, unit: Unit, state: RuleState) -> None:
        """Keep the unit and all that comes behind it; a hold that ends by the clock outlasts the sender."""
        self._keep(unit, self._book.catch(state, self))

    def stall(self, unit: Unit, state: RuleState) -> None:
        """Keep the unit, and read no further."""
        self._stall = self._book.catch(state, self)
        self._keep(unit, self._stall)

    def set_aside(self, unit: Unit, state: RuleState) -> None:
        """Keep the unit until another one has gone."""
        index = state.rule.index
        self._aside.append(Queued(unit, index, self._book.catch(state, self)))
        self._record(unit, "held", index)

    def slow(self, state: RuleState, rate: int) -> None:
        """Carry at most `rate` bytes a second from now on; what is in `out` already still goes at once."""
        self._pace = Pace(rate, free=len(self.out))
        self._book.slowed[self] = state

    # ---- what ends ----

    def advance(self) -> None:
        """Send on what no closed hold stands before any more."""
        while self._queue and not self._queue[0].stays:
            self._release(self._queue.popleft())
        self._bring_back([queued for queued in self._aside if not queued.stays])
        if self._stall is not None and self._stall.open:
            self._stall = None
        self._on_output()

    def kept(self) -> dict[Hold, int]:
        """For each closed hold how many frames stand behind it, its own included, up to the next closed one."""
        found = {queued.hold: 1 for queued in self._aside if queued.hold is not None}
        last: Hold | None = None
        for queued in self._queue:
            if queued.stays:
                last = queued.hold
            if last is not None:
                found[last] = found.get(last, 0) + 1
        return found

    def hasten(self) -> None:
        """Carry as fast as it goes again."""
        self._pace = None
        self._on_output()

    def due_ns(self) -> int | None:
        """When the next bytes may go, None if nothing waits."""
        return self._pace.next_ns if self._pace is not None and self.out else None

    def proceed(self) -> None:
        """Send what may go by now."""
        self._on_output()

    # ---- units ----

    def _message(self, message: Message) -> None:
        frames = message.frames
        bodies = message.bodies
        if self._from_subscriber and len(frames) == 1:
            subscription = frames[0].subscription
            if subscription is not None:
                kind = "SUBSCRIBE" if subscription.subscribe else "CANCEL"
                self._arrive(kind, None, message.raw, bodies)
                return
        kind, number = self._name(bodies)
        self._arrive(kind, number, message.raw, bodies, message)

    def _command(self, frame: Frame) -> None:
        name = str(frame.name)
        if name == "READY":
            try:
                self._from_subscriber = frame.properties.get("socket-type") in _SUBSCRIBERS
            except ZmtpError as error:
                self._trouble(f"metadata of READY: {error}")
        self._arrive(name.upper(), None, frame.raw, (frame.data,))

    def _name(self, parts: Sequence[bytes]) -> tuple[str, int | None]:
        """Kind and number of a message; a classify function that fails must not stop the traffic."""
        try:
            return self._words.name(self.leg.link, self.direction, parts)
        except WordError as error:
            self._word_trouble(error)
            return UNKNOWN, None

    def _word_trouble(self, error: WordError) -> None:
        if not self._word_failed:
            self._word_failed = True
            self._trouble(str(error))

    def _arrive(
        self, kind: str, number: int | None, raw: bytes, bodies: Sequence[bytes], message: Message | None = None
    ) -> None:
        if self.severed:
            self._record(Unit(kind, number, 0, raw, message), "discarded", None)
            return
        unit = Unit(kind, number, self._tally.count(kind), raw, message)
        met = self._tally.met(kind, message is not None, self._connection, bodies) if self._tally.watched else None
        if not met:
            self.forward(unit)
            return
        for state in met:
            if ACTIONS[state.rule.action](self, unit, state):
                return
        self.forward(unit, met[0].rule.index)

    def _pass_opaque(self, data: bytes) -> None:
        self.forward(Unit(UNKNOWN, None, self._tally.count(UNKNOWN), data))

    def _keep(self, unit: Unit, hold: Hold) -> None:
        index = hold.state.rule.index
        self._queue.append(Queued(unit, index, hold))
        self._record(unit, "held", index)
        self._bring_back(self._aside)

    def _bring_back(self, chosen: list[Queued]) -> None:
        """Of what was set aside: this has let another one pass, or is to wait no longer."""
        for queued in list(chosen):
            self._aside.remove(queued)
            if queued.stays and queued.hold is not None:
                self._book.forget(queued.hold)
            if self._queue:
                self._queue.append(Queued(queued.unit, self._queue[-1].rule, None))
            else:
                self._release(queued)

    def _release(self, queued: Queued) -> None:
        self.out += queued.unit.raw
        self._record(queued.unit, "released", queued.rule)

    def _discard(self, first: int = 0) -> None:
        """Give up what is held, but for the first so many."""
        given_up = [*list(self._queue)[first:], *self._aside]
        for queued in given_up:
            if queued.stays and queued.hold is not None:
                self._book.forget(queued.hold)
            self._record(queued.unit, "discarded", queued.rule)
        while len(self._queue) > first:
            self._queue.pop()
        self._aside.clear()

    def _record(self, unit: Unit, fate: Fate, rule: int | None) -> None:
        leg = self.leg
        self._ledger.add(
            Seen(
                now(),
                leg.link,
                leg.connector,
                self.direction,
                self._connection,
                unit.kind,
                unit.number,
                unit.nth,
                len(unit.raw),
                fate,
                rule,
            )
        )

    def _trouble(self, what: str) -> None:
        leg = self.leg
        self._ledger.add(Trouble(now(), leg.link, leg.connector, self.direction, self._connection, what))
