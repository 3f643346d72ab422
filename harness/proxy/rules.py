"""Rules at work: counting frames by kind, which rule a frame meets, and the holds that are in force.

An action is a function in `ACTIONS`: it takes the flow, the unit and the rule's state, uses the flow's verbs
(`forward`, `inject`, `drop`, `hold`), and says whether it took the unit. A further action is one more function, and a
verb where one is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from harness.clock import now
from harness.proxy.records import ANY_MESSAGE, Direction, Fate, FrameRule, Held, RuleCount
from harness.zmtp import Message, encode_message


class Unit(msgspec.Struct, gc=False):
    """A whole message or command on its way through: what it is, and its bytes on the wire.

    `message` is None for a command, and for bytes that could not be read.
    """

    kind: str
    number: int | None
    nth: int
    raw: bytes
    message: Message | None = None


class RuleState:
    """One rule and its counts in this run. `open`: its release instant is behind, it holds nothing any more."""

    __slots__ = ("fired", "open", "reached", "rule")

    def __init__(self, rule: FrameRule) -> None:
        self.rule = rule
        self.reached = 0
        self.fired = 0
        self.open = False

    def count(self) -> RuleCount:
        """The counts as a record."""
        return RuleCount(self.rule.index, 1, self.reached, self.fired)


class Flow(Protocol):
    """What an action may do with one direction of one connection."""

    def forward(self, unit: Unit, rule: int | None = None, fate: Fate = "passed") -> None:
        """Send the unit on, behind anything that is held."""

    def inject(self, parts: Sequence[bytes], rule: int) -> None:
        """Send a message that nobody has sent, behind anything that is held."""

    def moved(self, message: Message) -> Sequence[bytes] | None:
        """The parts of a message as a foreign run would have sent it; None if that cannot be said."""

    def drop(self, unit: Unit, rule: int) -> None:
        """Make an end of the unit."""

    def sever(self, unit: Unit, rule: int) -> None:
        """Make an end of the unit and of the whole connection."""

    def hold(self, unit: Unit, state: RuleState) -> None:
        """Keep the unit and all that comes behind it."""


class HeldFlow(Protocol):
    """A flow as a hold sees it."""

    def advance(self) -> None:
        """Send on what no closed hold stands before any more."""

    def frames_of(self, hold: Hold) -> int:
        """How many frames stand behind the hold, its own included, up to the next."""


class Hold:
    """One caught frame. `open` once it may go; `release_at_ns` is None where time does not end it."""

    __slots__ = ("flow", "open", "release_at_ns", "state")

    def __init__(self, state: RuleState, flow: HeldFlow) -> None:
        after = state.rule.after
        self.state = state
        self.flow = flow
        self.open = False
        self.release_at_ns = None if after is None else now() + int(after * 1e9)


def drop(flow: Flow, unit: Unit, state: RuleState) -> bool:
    """The frame is lost."""
    state.fired += 1
    flow.drop(unit, state.rule.index)
    return True


def hold(flow: Flow, unit: Unit, state: RuleState) -> bool:
    """The frame waits, unless its release came first."""
    if state.open:
        return False
    state.fired += 1
    flow.hold(unit, state)
    return True


def reset(flow: Flow, unit: Unit, state: RuleState) -> bool:
    """The frame is lost, and its connection with it."""
    state.fired += 1
    flow.sever(unit, state.rule.index)
    return True


def corrupt(flow: Flow, unit: Unit, state: RuleState) -> bool:
    """One byte of the message's last part has every bit flipped."""
    if unit.message is None or not unit.message.bodies[-1]:
        return False
    *parts, last = unit.message.bodies
    offset = len(last) // 2 if state.rule.offset is None else state.rule.offset
    at = min(max(offset + len(last) if offset < 0 else offset, 0), len(last) - 1)
    state.fired += 1
    raw = encode_message([*parts, last[:at] + bytes((last[at] ^ 0xFF,)) + last[at + 1 :]])
    flow.forward(Unit(unit.kind, unit.number, unit.nth, raw), state.rule.index, "corrupted")
    return True


def duplicate(flow: Flow, unit: Unit, state: RuleState) -> bool:
    """The message goes on, and then once more."""
    if unit.message is None:
        return False
    state.fired += 1
    flow.forward(unit, state.rule.index)
    flow.inject(unit.message.bodies, state.rule.index)
    return True


def foreign(flow: Flow, unit: Unit, state: RuleState) -> bool:
    """A message that was never meant for this run goes first."""
    if unit.message is None:
        return False
    parts = flow.moved(unit.message) if state.rule.data is None else [state.rule.data]
    if parts:
        state.fired += 1
        flow.inject(parts, state.rule.index)
    return False


ACTIONS: dict[str, Callable[[Flow, Unit, RuleState], bool]] = {
    "drop": drop,
    "hold": hold,
    "reset": reset,
    "corrupt": corrupt,
    "duplicate": duplicate,
    "foreign": foreign,
}


class Tally:
    """Counts of one (link, connector, direction), shared by all its connections, and the rules that watch it."""

    __slots__ = ("_kinds", "_messages", "_rules")

    def __init__(self, rules: tuple[RuleState, ...]) -> None:
        self._kinds: dict[str, int] = {}
        self._messages = 0
        self._rules = rules

    def count(self, kind: str, message: bool) -> int:
        """One more frame of `kind`; returns which one it is, from 1."""
        nth = self._kinds.get(kind, 0) + 1
        self._kinds[kind] = nth
        if message:
            self._messages += 1
        return nth

    def met(self, kind: str, message: bool, nth: int) -> list[RuleState]:
        """The rules that the frame just counted meets, in their order; each has been reached."""
        found = []
        for state in self._rules:
            rule = state.rule
            if rule.kind == ANY_MESSAGE:
                position = self._messages if message else 0
            else:
                position = nth if rule.kind == kind else 0
            if rule.nth <= position < rule.nth + rule.count:
                state.reached += 1
                found.append(state)
        return found

    def disarm(self) -> None:
        """Count on, but meet no rule any more."""
        self._rules = ()


class RuleBook:
    """All rules of a run. Raises `ValueError` for a rule with bad settings or an index used twice."""

    def __init__(self, rules: Iterable[FrameRule]) -> None:
        self.states: dict[int, RuleState] = {}
        self.holds: list[Hold] = []
        self._healed = False
        self._tallies: dict[tuple[str, str, Direction], Tally] = {}
        for rule in rules:
            fault = rule.fault()
            if fault is None and rule.index in self.states:
                fault = f"rule {rule.index}: the index is used twice; give each rule its own"
            if fault is not None:
                raise ValueError(fault)
            self.states[rule.index] = RuleState(rule)

    def tally(self, link: str, connector: str, direction: Direction) -> Tally:
        """The counter for one direction of a connector's link."""
        key = (link, connector, direction)
        found = self._tallies.get(key)
        if found is None:
            states = () if self._healed else self.states.values()
            found = self._tallies[key] = Tally(tuple(state for state in states if _watches(state.rule, *key)))
        return found

    def counts(self) -> list[RuleCount]:
        """Armed, reached and fired of each rule, in the order given."""
        return [state.count() for state in self.states.values()]

    def held(self) -> list[Held]:
        """The holds in force, oldest first."""
        return [
            Held(hold.state.rule.index, hold.flow.frames_of(hold), hold.release_at_ns, hold.state.rule.until_signal)
            for hold in self.holds
        ]

    def catch(self, state: RuleState, flow: HeldFlow) -> Hold:
        """A new hold in force."""
        hold = Hold(state, flow)
        self.holds.append(hold)
        return hold

    def forget(self, hold: Hold) -> None:
        """The hold has ended without a release."""
        self.holds.remove(hold)

    def next_timer_ns(self) -> int | None:
        """When the next hold ends by time."""
        return min((hold.release_at_ns for hold in self.holds if hold.release_at_ns is not None), default=None)

    def due(self, instant: int) -> list[Hold]:
        """The holds whose time has come by `instant`, in nanoseconds."""
        return [hold for hold in self.holds if hold.release_at_ns is not None and hold.release_at_ns <= instant]

    def of(self, index: int) -> list[Hold]:
        """The holds in force of one rule."""
        return [hold for hold in self.holds if hold.state.rule.index == index]

    def disarm(self) -> None:
        """No rule meets a frame from now on."""
        self._healed = True
        for tally in self._tallies.values():
            tally.disarm()

    def let_go(self, holds: list[Hold]) -> None:
        """Open these holds and send on what they kept."""
        for hold in holds:
            hold.open = True
            self.holds.remove(hold)
        for hold in holds:
            hold.flow.advance()


def _watches(rule: FrameRule, link: str, connector: str, direction: Direction) -> bool:
    return rule.link == link and rule.victim == connector and rule.direction in ("either", direction)
