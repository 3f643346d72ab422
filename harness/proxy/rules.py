"""Rules at work: counting frames by kind, which rule a frame meets, and the holds that are in force.

What an action does to a frame is a function in `harness.proxy.actions`.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from harness.clock import now
from harness.proxy.records import ANY_MESSAGE, Direction, FrameRule, Held, RuleCount
from harness.zmtp import Message

Key = tuple[str, str, Direction]
"""One direction of a connector's link: (link, connector, direction)."""


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
    """One rule and its counts in this run.

    `open`: its release instant is behind, it holds nothing any more. `live`: it meets frames; not so once it has been
    withdrawn, or faults are healed.
    """

    __slots__ = ("fired", "live", "open", "reached", "rule")

    def __init__(self, rule: FrameRule) -> None:
        self.rule = rule
        self.reached = 0
        self.fired = 0
        self.open = False
        self.live = True

    def count(self) -> RuleCount:
        """The counts as a record."""
        return RuleCount(self.rule.index, 1, self.reached, self.fired)


class Keeper(Protocol):
    """Who keeps what a hold holds: a flow its frames, an entrance its connections."""

    def advance(self) -> None:
        """Let go what no closed hold stands before any more."""

    def kept(self) -> Mapping[Hold, int]:
        """For each closed hold how many frames stand behind it, its own included, up to the next closed one."""


class Slowed(Protocol):
    """A flow that carries no more than so many bytes a second."""

    def hasten(self) -> None:
        """Carry as fast as it goes again."""

    def due_ns(self) -> int | None:
        """When the next bytes may go, None if nothing waits."""

    def proceed(self) -> None:
        """Send what may go by now."""


class Hold:
    """One thing that is kept. `open` once it may go; `release_at_ns` is None where time does not end it.

    One that time ends is not given up when the sender ends: what it keeps is on its way.
    """

    __slots__ = ("keeper", "open", "release_at_ns", "state")

    def __init__(self, state: RuleState, keeper: Keeper) -> None:
        after = state.rule.after
        self.state = state
        self.keeper = keeper
        self.open = False
        self.release_at_ns = None if after is None else now() + int(after * 1e9)


class _Watch:
    """A rule on one direction of a leg, and how many of the frames that it is for have come there."""

    __slots__ = ("_came", "_connection", "_first", "_last", "_match", "state")

    def __init__(self, state: RuleState) -> None:
        rule = state.rule
        self.state = state
        self._connection, self._match = rule.connection, rule.match
        self._first, self._last = rule.nth, rule.nth + rule.count - 1
        self._came = 0

    def meets(self, connection: int, bodies: Sequence[bytes]) -> bool:
        """One more frame of the rule's kind; whether the rule meets it."""
        if self._connection is not None and connection != self._connection:
            return False
        if self._match is not None and not any(self._match in body for body in bodies):
            return False
        self._came += 1
        return self._first <= self._came <= self._last


class Tally:
    """Counts of one (link, connector, direction), shared by all its connections, and the rules that watch it."""

    __slots__ = ("_counts", "_watches", "_watching")

    def __init__(self, states: Iterable[RuleState]) -> None:
        self._counts: dict[str, int] = {}
        self._watches: list[_Watch] = []
        self._watching: dict[tuple[str, bool], list[_Watch]] = {}
        for state in states:
            self.arm(state)

    @property
    def watched(self) -> bool:
        """Whether any rule is in force here."""
        return bool(self._watches)

    def count(self, kind: str) -> int:
        """One more frame of `kind`; returns which one it is, from 1."""
        nth = self._counts[kind] = self._counts.get(kind, 0) + 1
        return nth

    def met(self, kind: str, message: bool, connection: int, bodies: Sequence[bytes]) -> list[RuleState]:
        """The rules that a frame meets, in their order; each has been reached. Asked once for each frame."""
        found = []
        for watch in self._for(kind, message):
            if watch.meets(connection, bodies):
                watch.state.reached += 1
                found.append(watch.state)
        return found

    def arm(self, state: RuleState) -> None:
        """From now on this rule watches too."""
        self._watches.append(_Watch(state))
        self._watching.clear()

    def disarm(self, state: RuleState | None = None) -> None:
        """Count on, but meet this rule no more (None: any rule)."""
        self._watches = [] if state is None else [watch for watch in self._watches if watch.state is not state]
        self._watching.clear()

    def _for(self, kind: str, message: bool) -> list[_Watch]:
        """The watches that a frame of this kind concerns."""
        found = self._watching.get((kind, message))
        if found is None:
            kinds = (kind, ANY_MESSAGE) if message else (kind,)
            found = [watch for watch in self._watches if watch.state.rule.kind in kinds]
            self._watching[kind, message] = found
        return found


class RuleBook:
    """All rules of a run. Raises `ValueError` for a rule with bad settings or an index used twice."""

    def __init__(self, rules: Iterable[FrameRule]) -> None:
        self.states: dict[int, RuleState] = {}
        self.slowed: dict[Slowed, RuleState] = {}
        self._holds: dict[Hold, None] = {}  # in the order they were made
        self._timers: list[tuple[int, int, Hold]] = []
        self._order = itertools.count()
        self._tallies: dict[Key, Tally] = {}
        for rule in rules:
            self.add(rule)

    def add(self, rule: FrameRule) -> RuleState:
        """One more rule, in force from now on."""
        fault = rule.fault()
        if fault is None and rule.index in self.states:
            fault = f"rule {rule.index}: the index is used twice; give each rule its own"
        if fault is not None:
            raise ValueError(fault)
        state = self.states[rule.index] = RuleState(rule)
        for key, tally in self._tallies.items():
            if _watches(rule, key):
                tally.arm(state)
        return state

    def tally(self, link: str, connector: str, direction: Direction) -> Tally:
        """The counter for one direction of a connector's link."""
        key = (link, connector, direction)
        found = self._tallies.get(key)
        if found is None:
            states = [state for state in self.states.values() if state.live and _watches(state.rule, key)]
            found = self._tallies[key] = Tally(states)
        return found

    def counts(self) -> list[RuleCount]:
        """Armed, reached and fired of each rule, in the order given."""
        return [state.count() for state in self.states.values()]

    def disarm(self, state: RuleState | None = None) -> None:
        """This rule (None: no rule) meets a frame from now on, and slows nothing."""
        for one in self.states.values() if state is None else (state,):
            one.live = False
        for tally in self._tallies.values():
            tally.disarm(state)
        self.hasten(state)

    def hasten(self, state: RuleState | None = None) -> None:
        """What this rule (None: any rule) has slowed is as fast as before."""
        for flow in [flow for flow, why in self.slowed.items() if state in (None, why)]:
            del self.slowed[flow]
            flow.hasten()

    # ---- holds ----

    def held(self) -> list[Held]:
        """The holds in force, oldest first."""
        kept: dict[Hold, int] = {}
        for keeper in dict.fromkeys(hold.keeper for hold in self._holds):
            kept.update(keeper.kept())
        return [
            Held(hold.state.rule.index, kept.get(hold, 0), hold.release_at_ns, hold.state.rule.until_signal)
            for hold in self._holds
        ]

    def catch(self, state: RuleState, keeper: Keeper) -> Hold:
        """A new hold in force."""
        hold = Hold(state, keeper)
        self._holds[hold] = None
        if hold.release_at_ns is not None:
            heapq.heappush(self._timers, (hold.release_at_ns, next(self._order), hold))
        return hold

    def forget(self, hold: Hold) -> None:
        """The hold has ended without a release."""
        del self._holds[hold]

    def next_timer_ns(self) -> int | None:
        """When the next hold ends by time."""
        timers = self._timers
        while timers and timers[0][2] not in self._holds:
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    def due(self, instant: int) -> list[Hold]:
        """The holds whose time has come by `instant`, in nanoseconds; each is told once."""
        found = []
        while (at := self.next_timer_ns()) is not None and at <= instant:
            found.append(heapq.heappop(self._timers)[2])
        return found

    def of(self, index: int | None = None) -> list[Hold]:
        """The holds in force of one rule (None: of all)."""
        return [hold for hold in self._holds if index in (None, hold.state.rule.index)]

    def let_go(self, holds: list[Hold]) -> None:
        """Open these holds and let go what they kept."""
        for hold in holds:
            hold.open = True
            del self._holds[hold]
        for keeper in dict.fromkeys(hold.keeper for hold in holds):
            keeper.advance()


def _watches(rule: FrameRule, key: Key) -> bool:
    return (rule.link, rule.victim) == key[:2] and rule.direction in ("either", key[2])
