"""The places that a phase passes: every instant of every role and every frame on every link, learnt from dry runs.

How often some sites are passed differs from run to run (a poll more, a hello more). A place counts if every dry run
passes it, so that a fault there will fire; it is of the phase if any of them passes it within the phase, so that what
lies on the edge is in whatever way the race at the edge goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, TypeVar, cast

from msgspec import Struct

from harness.history import History
from harness.instant import Instant, Side
from harness.search.phases import Phase

Direction = Literal["to_binder", "to_connector", "either"]


class FramePlace(Struct, frozen=True):
    """The ``nth`` frame of a kind that travels in one direction between ``victim`` and the binder of ``link``."""

    link: str
    frame: str
    victim: str
    nth: int
    direction: Direction

    def __str__(self) -> str:
        arrow = {"to_binder": "->", "to_connector": "<-", "either": "-"}[self.direction]
        return f"{self.victim} {arrow} {self.link}[{self.frame}]#{self.nth}"


class Places(Struct, frozen=True):
    """All places of a phase, each kind in the order of a first run."""

    instants: tuple[Instant, ...]
    frames: tuple[FramePlace, ...]


def learn(phase: Phase, plain: Sequence[History], observed: Sequence[History]) -> Places:
    """The places of a phase from runs in which nothing was broken.

    Instants are learnt from ``plain`` runs and from those of which every link was ``observed``, frames from the latter.
    Raises ValueError for a run that has not come through the phase.
    """
    return Places(
        _common([(dict(instants(history)), phase.window(history)) for history in (*plain, *observed)]),
        _common([(dict(frames(history)), phase.window(history)) for history in observed]),
    )


P = TypeVar("P", Instant, FramePlace)


def _common(runs: Sequence[tuple[dict[P, int], tuple[int, int]]]) -> tuple[P, ...]:
    """What is passed in each run and, in any of them, within the window."""
    first, _ = runs[0]
    return tuple(
        place
        for place in first
        if all(place in passed for passed, _ in runs)
        and any(begin <= passed[place] <= end for passed, (begin, end) in runs)
    )


def instants(history: History) -> Iterator[tuple[Instant, int]]:
    """Every instant that a run passed, and when first (nanoseconds)."""
    seen: set[Instant] = set()
    succeeded: Counter[tuple[str, str]] = Counter()
    for event in history.events:
        if event.t > history.cleanup or not event.ok:
            continue
        site = event.role, event.site
        if event.site in ("start", "exit"):
            instant = Instant(event.role, event.site)
        elif event.side == "before":
            # What a receive will bring is not known before it, so it is counted whatever it brings.
            known = bool(event.kind) or not event.site.endswith(".recv")
            n = event.n if known else succeeded[site] + 1
            instant = Instant(event.role, event.site, event.kind or None, n, "before")
        elif event.side == "after":
            succeeded[site] += 1
            instant = Instant(event.role, event.site, event.kind or None, event.n, "after")
        else:
            continue
        if instant not in seen:
            seen.add(instant)
            yield instant, event.t


def frames(history: History) -> Iterator[tuple[FramePlace, int]]:
    """Every frame that a run's proxy saw for the first time, and when (nanoseconds)."""
    for frame in history.frames:
        if frame.nth > 0:
            direction = cast(Direction, frame.direction)
            yield FramePlace(frame.link, frame.kind, frame.connector, frame.nth, direction), frame.t


def sides(instants: Sequence[Instant]) -> dict[str, dict[Side, Instant]]:
    """The instants by the call that they are the two sides of, as a person names it."""
    calls: dict[str, dict[Side, Instant]] = {}
    for instant in instants:
        name = str(instant).removesuffix(f":{instant.side}")
        calls.setdefault(name, {})[instant.side] = instant
    return calls
