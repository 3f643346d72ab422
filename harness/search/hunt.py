"""The hunt: first the canary, then plan after plan, then each distinct failure confirmed, shrunk and written down.

Plans come from Hypothesis, but nothing is run or judged inside it (see `harness.search.draw` and, for those near what
was new, `harness.search.guide`). While plans run nothing else does: confirming and shrinking wait until the lanes are
free.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Protocol

from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.strategies import SearchStrategy
from msgspec import Struct

from harness import folder
from harness.bug import Bug
from harness.clock import now, seconds_since
from harness.plan import MAX_TP, EngineOptions, Plan
from harness.search.canary import RELAY as CANARY_RELAY
from harness.search.canary import Canary, sing
from harness.search.cover import cover
from harness.search.draw import draw
from harness.search.examples import Examples
from harness.search.guide import Guide
from harness.search.passage import Passages, learnt, of_table
from harness.search.score import Failure, Found, HuntResult, Score
from harness.search.smallest import smallest
from harness.search.strategies import plans
from harness.trial import Tally, Trial, trials
from harness.world import World

MAX_SHRUNK = 5
"""Distinct failures that are confirmed and shrunk after a hunt; the rest is only counted."""

NAME = "hunt"


class HuntOptions(Struct, frozen=True):
    """What to hunt: the relay (the bug's or the target's default if empty), the range of ranks, and when to stop.

    ``relay`` may name several, with commas between: each plan draws one.

    ``bug`` is seeded in the engine of every plan but the canary's. ``seconds`` bounds the time in which plans are
    begun; ``plans`` their number; without either it goes on until it is interrupted. ``guided``: as many climbs as
    lanes look for new orders of events (`harness.search.guide`). ``examples`` is the folder of the plans that failed,
    with which the next hunt begins.
    """

    relay: str = ""
    tp: tuple[int, int] = (1, MAX_TP)
    seconds: float | None = 60.0
    plans: int | None = None
    seed: int = 0
    lanes: int = 4
    target: str = "engine"
    start: str = "fork"
    out: Path = folder.DEFAULT
    bug: Bug | None = None
    guided: bool = False
    examples: Path | None = None

    @property
    def hunted(self) -> str:
        """The relay strategy that is hunted, or several with commas between."""
        return self.relay or (self.bug.relay if self.bug is not None else "") or EngineOptions().relay

    @property
    def relays(self) -> tuple[str, ...]:
        """The relay strategies that are hunted."""
        return tuple(self.hunted.split(","))


def hunting(world: World, options: HuntOptions) -> Generator[Trial]:
    """Runs the plans of a hunt and judges them, in the order of completion; to be closed by who leaves it early.

    First come those that failed in an earlier hunt, and the fixed plans. Then dry runs learn what the hunted engine
    passes, and plans are drawn there, the same for the same seed; in a guided hunt every second one is near what has
    brought something new.
    """
    began, begun = now(), 0

    def over() -> bool:
        late = options.seconds is not None and seconds_since(began) >= options.seconds
        return late or begun == options.plans

    def bounded(plans: Iterator[Plan]) -> Iterator[Plan]:
        nonlocal begun
        while not over() and (plan := next(plans, None)) is not None:
            begun += 1
            yield plan

    def put(plan: Plan) -> Plan:
        return plan if options.bug is None else options.bug.put_into(plan)

    examples = _examples(options)
    least, most = options.tp
    failed = [plan for plan in examples.plans() if least <= plan.topology.tp <= most]
    covers = (cover(options.tp, relay, options.start, options.target) for relay in options.relays)
    fixed = map(put, chain.from_iterable(covers))
    with closing(trials(world, bounded(chain(failed, fixed)), scenario=NAME, seed=options.seed)) as runs:
        for trial in runs:
            examples.tell(trial)
            yield trial
    if over():
        return
    strategy = _strategy(options, options.relays, options.tp, _learn(world, options)).map(put)
    with (
        Guide(draw(strategy, options.seed), strategy, options.seed, options.lanes if options.guided else 0) as guide,
        closing(trials(world, bounded(guide), scenario=NAME, seed=options.seed)) as runs,
    ):
        for trial in runs:
            guide.tell(trial)
            examples.tell(trial)
            yield trial


def _examples(options: HuntOptions) -> Examples:
    database = None if options.examples is None else DirectoryBasedExampleDatabase(options.examples)
    return Examples(database, options.target, options.hunted, options.bug.id if options.bug is not None else "")


def _learn(world: World, options: HuntOptions) -> Passages:
    """What runs of the hunted engine pass, from dry runs."""
    low, high = options.tp
    return learnt(
        world, options.relays, range(low, high + 1), target=options.target, start=options.start, bug=options.bug
    )


def _strategy(
    options: HuntOptions, relays: Sequence[str], tp: tuple[int, int], passages: Passages = of_table
) -> SearchStrategy[Plan]:
    return plans(tp=tp, relay=relays, target=options.target, start=options.start, passages=passages)


class Watcher(Protocol):
    """Who shows a hunt while it goes on."""

    def canary(self, plans: int, result: Canary | None) -> None:
        """The canary has run ``plans`` plans; ``result`` once it is over."""

    def hunting(self, score: Score) -> None:
        """One more plan has ended."""

    def confirming(self, trial: Trial, met: int) -> None:
        """A failure is about to be repeated and shrunk."""


class Hunt:
    """One hunt in one world."""

    def __init__(self, world: World, options: HuntOptions, watcher: Watcher) -> None:
        self._world = world
        self._options = options
        self._watcher = watcher
        self._relay = options.hunted
        self._score = Score()
        self._seconds = 0.0
        self._canary: Canary | None = None
        self._found: list[Found] = []

    def run(self) -> HuntResult:
        """Hunts until time or plans are used up, or until Ctrl-C; what was done so far is in the result either way."""
        interrupted = False
        try:
            self._sing()
            if self._canary is not None and self._canary.found and self._relay != CANARY_RELAY:
                self._hunt()
            self._conclude()
        except KeyboardInterrupt:
            interrupted = True
            self._note_the_rest()
        options = self._options
        return self._score.result(
            target=options.target,
            relay=self._relay,
            tp=options.tp,
            seed=options.seed,
            lanes=options.lanes,
            seconds=self._seconds or self._score.seconds,
            canary=self._canary,
            found=tuple(self._found),
            interrupted=interrupted,
        )

    def _sing(self) -> None:
        low, high = self._options.tp
        drawn = draw(_strategy(self._options, (CANARY_RELAY,), (max(2, low), max(2, high))), self._options.seed)
        canary, trial = sing(self._world, drawn, self._options.seed, lambda count: self._watcher.canary(count, None))
        self._canary = canary
        self._watcher.canary(canary.plans, canary)
        self._score = Score(self._options.bug)
        if trial is not None and self._relay == CANARY_RELAY:
            self._score.add(trial)
            self._seconds = canary.seconds

    def _hunt(self) -> None:
        options = self._options
        self._score = score = Score(options.bug)
        with closing(hunting(self._world, options)) as runs:
            for trial in runs:
                score.add(trial)
                self._watcher.hunting(score)
        self._seconds = score.seconds

    def _conclude(self) -> None:
        # What is proved comes first: with many failures the bound must not fall on the surest.
        failures = sorted(self._score.failures.values(), key=lambda failure: failure.trial.verdict.exit_code)
        for failure in failures[:MAX_SHRUNK]:
            self._watcher.confirming(failure.trial, failure.met)
            self._found.append(self._examine(failure))

    def _note_the_rest(self) -> None:
        """Writes down, unconfirmed and as they are, the failures that an interrupted hunt has met."""
        for failure in list(self._score.failures.values())[len(self._found) : MAX_SHRUNK]:
            verdict = folder.write(self._options.out, failure.trial.named(NAME, self._options.seed))
            faults = len(failure.trial.plan.faults)
            self._found.append(Found(verdict, failure.met, faults, Tally(0, {}), 0))

    def _examine(self, failure: Failure) -> Found:
        first, options = failure.trial, self._options
        found = smallest(self._world, first, width=options.lanes, scenario=NAME, seed=options.seed)
        return found.written(options.out, met=failure.met)
