"""One direction of one connection: bytes in, units past the rules, bytes out; what is held waits in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from harness.clock import now
from harness.proxy.ledger import Ledger
from harness.proxy.records import UNKNOWN, Direction, Fate, Leg, Seen, Trouble
from harness.proxy.rules import ACTIONS, Hold, RuleBook, RuleState, Unit
from harness.proxy.words import WordError, Words
from harness.zmtp import Assembler, Frame, Message, ZmtpError, encode_message

_SUBSCRIBERS = (b"SUB", b"XSUB")


class Queued:
    """A unit that waits. `hold` is its own, if it was caught itself; `rule` is the one whose hold it waits for."""

    __slots__ = ("hold", "rule", "unit")

    def __init__(self, unit: Unit, rule: int, hold: Hold | None) -> None:
        self.unit = unit
        self.rule = rule
        self.hold = hold


class Flow:
    """Bytes read from one side become units, meet the rules, and end in `out`, which the connection writes.

    `on_output` is called when something that was held has been put in `out`.
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
    ) -> None:
        self.leg = leg
        self.direction: Direction = direction
        self.out = bytearray()
        self.severed = False
        """Whether a rule has broken the connection: what is in `out` still goes, nothing else does."""
        self._connection = connection
        self._book = book
        self._ledger = ledger
        self._words = words
        self._on_output = on_output
        self._tally = book.tally(leg.link, leg.connector, direction)
        self._assembler = Assembler()
        self._queue: deque[Queued] = deque()
        self._from_subscriber = False
        self._opaque = False  # the bytes are not ZMTP: pass them on as they come
        self._word_failed = False

    @property
    def pending(self) -> int:
        """Bytes read and not yet written, held ones not counted."""
        return len(self.out) + self._assembler.pending

    def receive(self, data: bytes) -> None:
        """Take bytes from the sending side."""
        if self._opaque:
            self._pass_opaque(data)
            return
        rest = b""
        try:
            units: Sequence[object] = self._assembler.feed(data)
        except ZmtpError as error:
            units, rest = error.items, error.rest
            self._opaque = True
            self._trouble(f"{error}; passed on unread from here")
        for unit in units:
            if type(unit) is Message:
                self._message(unit)
            elif type(unit) is Frame:
                self._command(unit)
            else:
                self.out += unit.raw  # type: ignore[attr-defined]
        if rest:
            self._pass_opaque(rest)

    def finish(self) -> None:
        """The sending side has ended: what is held is discarded, an unfinished frame is passed on as it is."""
        self.discard()
        rest = self._assembler.flush()
        if rest:
            self._pass_opaque(rest)

    def discard(self) -> None:
        """Give up everything that is held."""
        for queued in self._queue:
            if queued.hold is not None and not queued.hold.open:
                self._book.forget(queued.hold)
            self._record(queued.unit, "discarded", queued.rule)
        self._queue.clear()

    def abandon(self) -> int:
        """The receiving side has gone: give up everything, and return how many bytes had passed the rules in vain."""
        self.discard()
        lost = self.pending
        self._assembler.flush()
        self.out.clear()
        return lost

    def forward(self, unit: Unit, rule: int | None = None, fate: Fate = "passed") -> None:
        """Send the unit on, behind anything that is held."""
        if self._queue:
            before = self._queue[-1].rule
            self._queue.append(Queued(unit, before, None))
            self._record(unit, "held", before)
        else:
            self.out += unit.raw
            self._record(unit, fate, rule)

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
        """Keep the unit and all that comes behind it."""
        index = state.rule.index
        self._queue.append(Queued(unit, index, self._book.catch(state, self)))
        self._record(unit, "held", index)

    def advance(self) -> None:
        """Send on what no closed hold stands before any more."""
        moved = False
        while self._queue:
            first = self._queue[0]
            if first.hold is not None and not first.hold.open:
                break
            self._queue.popleft()
            self.out += first.unit.raw
            self._record(first.unit, "released", first.rule)
            moved = True
        if moved:
            self._on_output()

    def frames_of(self, hold: Hold) -> int:
        """How many frames stand behind the hold, its own included, up to the next closed one."""
        frames = 0
        for queued in self._queue:
            if queued.hold is hold:
                frames = 1
            elif frames and queued.hold is not None and not queued.hold.open:
                break
            elif frames:
                frames += 1
        return frames

    def _message(self, message: Message) -> None:
        frames = message.frames
        if self._from_subscriber and len(frames) == 1:
            subscription = frames[0].subscription
            if subscription is not None:
                self._arrive("SUBSCRIBE" if subscription.subscribe else "CANCEL", None, message.raw)
                return
        kind, number = self._name(message.bodies)
        self._arrive(kind, number, message.raw, message)

    def _command(self, frame: Frame) -> None:
        name = str(frame.name)
        if name == "READY":
            try:
                self._from_subscriber = frame.properties.get("socket-type") in _SUBSCRIBERS
            except ZmtpError as error:
                self._trouble(f"metadata of READY: {error}")
        self._arrive(name.upper(), None, frame.raw)

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

    def _arrive(self, kind: str, number: int | None, raw: bytes, message: Message | None = None) -> None:
        if self.severed:
            self._record(Unit(kind, number, 0, raw, message), "discarded", None)
            return
        nth = self._tally.count(kind, message is not None)
        unit = Unit(kind, number, nth, raw, message)
        met = self._tally.met(kind, message is not None, nth)
        if not met:
            self.forward(unit)
            return
        for state in met:
            if ACTIONS[state.rule.action](self, unit, state):
                return
        self.forward(unit, met[0].rule.index)

    def _pass_opaque(self, data: bytes) -> None:
        self.forward(Unit(UNKNOWN, None, self._tally.count(UNKNOWN, False), data))

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
