"""Pairs of faults: after each fault that was served or refused, a second one at what that very run passed later.

So each pair is met in the order in which it can happen, and places are met too that only a first fault makes: a rank
that leaves for a dead peer, a launcher that clears up. What the lineage of that run shows to touch nothing that users
were told is pruned. All here is a function of histories, and runs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from msgspec import Struct

from harness.faults import Fault
from harness.history import Frame, History
from harness.instant import Instant
from harness.oracles import outcome
from harness.search.cells import ON_FRAMES, ON_INSTANTS, Cell, plus
from harness.search.lineage import Lineage
from harness.search.phases import Phase
from harness.search.places import FramePlace, frames, instants
from harness.targets import Target

TURNS = ("kill", "drop", "raise", "duplicate", "stop", "reset", "hold", "reorder")
"""The kinds of second faults in the order of their turns: what ends or loses something before what takes time."""

Trace = tuple[str, ...]
"""A place without its number of occurrence."""


class Second(Struct, frozen=True):
    """A fault that can come second. ``since``: nanoseconds from the first one until its place was passed.

    ``known``: runs in which nothing is broken pass such a place too, if not as often. ``pruned``: it touches nothing
    that users were told.
    """

    row: str
    column: str
    fault: Fault
    since: int
    known: bool
    pruned: bool

    @property
    def kind(self) -> str:
        return self.column.partition(":")[0]


class Pair(Cell, frozen=True):
    """A cell and a second fault after its own: ``row``, ``column`` and ``plan`` are those with the second one."""

    first: Cell
    pruned: bool

    @property
    def name(self) -> str:
        return f"{self.first.name}, then {self.column} at {self.row}"


def traces(history: History) -> frozenset[Trace]:
    """What a run passes, whatever the number."""
    passed = {_trace(place) for place, _ in instants(history)}
    return frozenset(passed | {_trace(place) for place, _ in frames(history)})


def _trace(place: Instant | FramePlace) -> Trace:
    if isinstance(place, Instant):
        return place.role, place.site, place.kind or "", place.side
    return place.link, place.frame, place.victim, place.direction


def seconds(
    history: History, first: int, phase: Phase, target: Target, known: frozenset[Trace] = frozenset()
) -> tuple[Second, ...]:
    """What can come second in a run of which the fault with index ``first`` has fired, in order of time.

    That is at every place that the run passed after it and within the phase; until the end of the run, if it has not
    come through the phase.
    """
    began = outcome.fired_at(history, first)
    end = phase.until.first(history) if phase.until is not None else None
    end = history.cleanup if end is None else end
    lineage = Lineage.of(history, target)
    found = []
    for instant, t in _first_passed(instants(history)):
        if began < t <= end:
            usual, pruned = _trace(instant) in known, not lineage.holds(instant.role, t)
            row = str(instant).removesuffix(f":{instant.side}")
            for kind, at in ON_INSTANTS.items():
                found.append(Second(row, f"{kind}:{instant.side}", at(instant), t - began, usual, pruned))
    for place, t in _first_passed(frames(history)):
        if began < t <= end:
            usual, seen = _trace(place) in known, _frame(history, place, t)
            for kind, to in ON_FRAMES.items():
                touches = lineage.receives if kind in ("drop", "duplicate") else lineage.carries
                found.append(Second(str(place), kind, to(place), t - began, usual, not touches(seen)))
    return tuple(sorted(found, key=lambda second: second.since))


P = TypeVar("P", Instant, FramePlace)


def _first_passed(passed: Iterable[tuple[P, int]]) -> Iterator[tuple[P, int]]:
    """Each place once, as it was first passed: a held frame is seen again when it is released."""
    seen: dict[P, int] = {}
    for place, t in passed:
        seen.setdefault(place, t)
    yield from seen.items()


def _frame(history: History, place: FramePlace, t: int) -> Frame:
    """The frame that the proxy saw at that place and time."""
    return next(
        frame
        for frame in history.frames
        if (frame.t, frame.link, frame.kind, frame.connector, frame.nth, frame.direction)
        == (t, place.link, place.frame, place.victim, place.nth, place.direction)
    )


def ordered(follows: Iterable[tuple[Cell, Sequence[Second]]]) -> tuple[Pair, ...]:
    """All pairs, each once, those first that are most worth a run; the same for the same histories.

    - Rounds: each first fault gets one pair in each round. Within a round they come in the order of their digests,
      so that any part of a round is spread over all roles and kinds.
    - Of one first fault, second places come first that no run passes in which nothing is broken: the paths that
      errors take. Then those that every run passes.
    - Of either, the kinds take turns (`TURNS`, each first fault begins with another one), and of one kind what is
      nearest in time after the first fault comes first: one fault meets the other while it is being dealt with.

    Of two faults that were met in both orders, that order is kept which is not pruned, or else the first.
    """
    ranked: list[tuple[int, int, Pair]] = []
    for place, (first, found) in enumerate(_each_once(follows)):
        ranked += [(number, place, _pair(first, second)) for number, second in enumerate(_in_turn(found, place))]
    return tuple(pair for _, _, pair in sorted(ranked, key=lambda one: one[:2]))


def _pair(first: Cell, second: Second) -> Pair:
    return Pair(second.row, second.column, plus(first.plan, second.fault), first, second.pruned)


def _each_once(follows: Iterable[tuple[Cell, Sequence[Second]]]) -> list[tuple[Cell, list[Second]]]:
    """What follows each first fault, in the order of digests, without what is met in the other order too."""
    firsts = sorted(follows, key=lambda one: one[0].plan.digest)
    kept: dict[frozenset[Fault], tuple[int, Second]] = {}
    for place, (first, found) in enumerate(firsts):
        for second in found:
            both = frozenset((first.fault, second.fault))
            if both not in kept or (kept[both][1].pruned and not second.pruned):
                kept[both] = place, second
    left: list[list[Second]] = [[] for _ in firsts]
    for place, second in kept.values():
        left[place].append(second)
    return [(first, found) for (first, _), found in zip(firsts, left, strict=True)]


def _in_turn(found: Sequence[Second], begin: int) -> list[Second]:
    """The order of what follows one first fault, whose turns begin with the kind of that number."""
    met: Counter[tuple[bool, str]] = Counter()
    ranked = []
    for place, second in enumerate(sorted(found, key=lambda one: one.since)):
        turn = (TURNS.index(second.kind) - begin) % len(TURNS)
        ranked.append((second.known, met[second.known, second.kind], turn, place, second))
        met[second.known, second.kind] += 1
    return [second for *_, second in sorted(ranked, key=lambda one: one[:4])]
