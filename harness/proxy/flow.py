"""One direction of one connection: bytes in, units past the rules, bytes out; what is held waits in order."""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Sequence

from harness.clock import now
from harness.proxy.ledger import Ledger
from harness.proxy.records import UNKNOWN, Direction, Fate, Kind, Leg, Seen, Trouble
from harness.proxy.rules import ACTIONS, Hold, RuleBook, RuleState, Unit
from harness.zmtp import Assembler, Frame, Message, ZmtpError

Classify = Callable[[str, str, Sequence[bytes]], Kind]

_SUBSCRIBERS = (b"SUB", b"XSUB")
_UNKNOWN = Kind(UNKNOWN)


def unclassified(link: str, direction: str, frames: Sequence[bytes]) -> Kind:
    """The classify function of a run that names none: every message is of kind `?`."""
    return _UNKNOWN


def load_classify(name: str | None) -> Classify:
    """Import `module:function`. Raises `ValueError` when it is not there."""
    if name is None:
        return unclassified
    module, _, function = name.partition(":")
    if not module or not function:
        raise ValueError(f"bad classify {name!r}: expected module:function")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"cannot load classify {name!r}: {error}") from error
    if not callable(found):
        raise ValueError(f"classify {name!r} is not a function")
    return found  # type: ignore[no-any-return]


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
        classify: Classify,
        on_output: Callable[[], None],
    ) -> None:
        self.leg = leg
        self.direction: Direction = direction
        self.out = bytearray()
        self._connection = connection
        self._book = book
        self._ledger = ledger
        self._classify = classify
        self._on_output = on_output
        self._tally = book.tally(leg.link, leg.connector, direction)
        self._assembler = Assembler()
        self._queue: deque[Queued] = deque()
        self._from_subscriber = False
        self._opaque = False  # the bytes are not ZMTP: pass them on as they come
        self._classify_failed = False

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

    def forward(self, unit: Unit, rule: int | None = None) -> None:
        """Send the unit on, behind anything that is held."""
        if self._queue:
            before = self._queue[-1].rule
            self._queue.append(Queued(unit, before, None))
            self._record(unit, "held", before)
        else:
            self.out += unit.raw
            self._record(unit, "passed", rule)

    def drop(self, unit: Unit, rule: int) -> None:
        """Make an end of the unit."""
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
                self._arrive("SUBSCRIBE" if subscription.subscribe else "CANCEL", None, message.raw, False)
                return
        kind, number = self._name(message)
        self._arrive(kind, number, message.raw, True)

    def _command(self, frame: Frame) -> None:
        name = str(frame.name)
        if name == "READY":
            try:
                self._from_subscriber = frame.properties.get("socket-type") in _SUBSCRIBERS
            except ZmtpError as error:
                self._trouble(f"metadata of READY: {error}")
        self._arrive(name.upper(), None, frame.raw, False)

    def _name(self, message: Message) -> tuple[str, int | None]:
        """Kind and number of a message; a classify function that fails must not stop the traffic."""
        try:
            found = self._classify(self.leg.link, self.direction, message.bodies)
            kind, number = found.kind, found.number
            if isinstance(kind, str) and (number is None or -(2**63) <= int(number) < 2**63):
                return kind, number
            what = f"classify returned kind {kind!r} and number {number!r}; expected a string and an integer or None"
        except Exception as error:  # foreign code
            what = f"classify failed: {type(error).__name__}: {error}"
        if not self._classify_failed:
            self._classify_failed = True
            self._trouble(what)
        return UNKNOWN, None

    def _arrive(self, kind: str, number: int | None, raw: bytes, message: bool) -> None:
        nth = self._tally.count(kind, message)
        unit = Unit(kind, number, nth, raw)
        met = self._tally.met(kind, message, nth)
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
