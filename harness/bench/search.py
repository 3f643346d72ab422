"""search: the time to the first failing plan for seeded bugs of different depth, beside tests without the harness.

Ours is a hunt with default settings, one for each seed, in a world that is up and that knows of no earlier hunt; it has
found the bug when a verdict fails for certain and the bug's canary says that it did harm in that run. The three
baselines (`harness.bench.baselines`) are programs, timed from their start; each has found the bug with its first
failing case, unless that case fails without the bug too. A search that found nothing took longer than it was given.
Each baseline also tests the engine without a bug, and must not find anything there.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, structs

from harness import scenario
from harness.bench import BenchError, Options
from harness.bench.baselines import BUDGET, STARTUP, TIMEOUT, case, program
from harness.bench.baselines.case import Case
from harness.bench.journal import Journal
from harness.bug import Bug
from harness.clock import now, seconds_since
from harness.plan import Plan
from harness.search.hunt import HuntOptions, hunting
from harness.trial import trials
from harness.world import World
from harness.world.real import RealWorld

if TYPE_CHECKING:
    from rich.console import RenderableType

USES = ("rounds", "bugs", "lanes", "out", "fresh")
"""The options that apply; ``rounds`` is the number of seeds of ours."""

BUGS = ("C1", "S2", "E1", "T1", "U1", "H3", "H4", "H5")
"""From what any two requests show to what only one late or lost frame shows."""

SEEDS = 20
"""Hunts for each bug if nothing else is said."""

SECONDS = 60.0
"""For how long a hunt begins plans."""

PYTEST, HYPOTHESIS, LOOP = "pytest", "hypothesis", "loop"

TRIALS = {PYTEST: 3, HYPOTHESIS: 5, LOOP: 5}
"""Programs of each baseline for each bug."""

_PROGRAMS = {
    HYPOTHESIS: "harness.bench.baselines.plain_hypothesis",
    LOOP: "harness.bench.baselines.kill_loop",
}

CASES_SECONDS = 3 * (STARTUP + TIMEOUT) + 60.0
"""For how long the seed's three cases may go on: longer than they can, and than pytest takes for itself."""

SEARCHES = (HYPOTHESIS, LOOP)
"""The baselines that go on until their budget is used up. The other one runs three cases and has an end of its own."""

SOONER = 20.0
"""How many times sooner than plain Hypothesis ours has to be, in the median over the bugs."""

OURS, WORLD = "ours", "world"


class Told(Struct, frozen=True):
    """One search: its seconds, to the find or in all, the plans that ours ran, and what it found in its own words.

    ``without`` is what a baseline's failing case came to without the bug: if that is anything, nothing was found.
    """

    seconds: float
    found: str = ""
    plans: int = 0
    without: str = ""

    @property
    def is_found(self) -> bool:
        """Whether it found the bug."""
        return bool(self.found) and not self.without


class _Kept:
    """What the journal tells, and what is searched because it does not tell."""

    def __init__(self, journal: Journal, options: Options) -> None:
        self._journal, self._options = journal, options
        self.resumed = 0

    def get(self, key: str, number: int) -> Told | None:
        line = self._journal.told(key, number)
        return None if line is None else msgspec.json.decode(line, type=Told)

    def of(self, key: str, number: int, search: Callable[[], Told]) -> Told:
        told = self.get(key, number)
        if told is not None:
            self.resumed += 1
            return told
        self._options.show(f"searching  {key}   trial {number + 1}")
        told = search()
        self.keep(key, number, told)
        return told

    def keep(self, key: str, number: int, told: Told) -> None:
        self._journal.add(key, number, msgspec.json.encode(told).decode())


def measure(options: Options) -> dict[str, Any]:
    """Searches where the journal does not tell yet. Raises ScenarioError for an unknown bug, and BenchError."""
    chosen = [scenario.bug(wanted) for wanted in options.bugs or BUGS]
    seeds = options.rounds or SEEDS
    with Journal(options.out / "search.jsonl", fresh=options.fresh) as journal:
        kept = _Kept(journal, options)
        ours = _hunts(kept, chosen, seeds, options.lanes or RealWorld.default_lanes())
        theirs = {bug.id: _baselines(kept, bug) for bug in chosen}
        controls = _controls(kept, chosen)
        world = kept.get(WORLD, 0)
    rows = [_row(bug, ours[bug.id], theirs[bug.id]) for bug in chosen]
    return {
        "name": "search",
        "seeds": seeds,
        "trials": TRIALS,
        "resumed": kept.resumed,
        "seconds": {OURS: SECONDS, **dict.fromkeys(SEARCHES, BUDGET)},
        "timeouts": {"startup": STARTUP, "rest": TIMEOUT},
        "world_seconds": None if world is None else world.seconds,
        "bugs": rows,
        "ratio": round(median(row["ratio"] for row in rows), 1),
        "censored": any(row["censored"] for row in rows),
        "needed": SOONER,
        "missed": [row["bug"] for row in rows if row["missed"]],
        "controls": {name: told.found for name, told in controls.items()},
        "cores": len(os.sched_getaffinity(0)),
    }


def good(result: dict[str, Any]) -> bool:
    """Whether ours is so much sooner, misses nothing that others find, and nobody finds anything where nothing is."""
    return result["ratio"] >= result["needed"] and not result["missed"] and not any(result["controls"].values())


def table(result: dict[str, Any]) -> RenderableType:
    """One line for each bug, with the median in seconds and how many found it; below it what is asked for."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("bug", OURS, *TRIALS, "times sooner"):
        grid.add_column(name, no_wrap=True)
    grid.add_column("", overflow="fold")
    limits = result["seconds"]
    for row in result["bugs"]:
        cells = []
        for way, count in {OURS: result["seeds"], **result["trials"]}.items():
            one = row[way]
            unsolved = f"> {limits[way]:.0f}" if way in limits else "not found"
            seconds = unsolved if one["median"] is None else f"{one['median']:.1f}"
            cells.append(f"{seconds} ({one['found']}/{count})")
        times = f"{'> ' if row['censored'] else ''}{row['ratio']:.0f}" if row["ratio"] else "-"
        grid.add_row(row["bug"], *cells, times, row["name"], style="red" if row["missed"] else None)
    alarms = [f"{name}: {found}" for name, found in result["controls"].items() if found]
    silent = f"none in {len(result['controls'])} programs"
    at_least = "at least " if result["censored"] else ""
    lines = [
        f"median of the ratios     {at_least}{result['ratio']:.0f}   {result['needed']:.0f} needed",
        f"missed by ours alone     {', '.join(result['missed']) or 'none'}",
        f"alarms without a bug     {', '.join(alarms) or silent}",
    ]
    if result["world_seconds"] is not None:
        lines.append(f"bringing up our world    {result['world_seconds']:.1f} s, once, and in none of the times above")
    return Group(grid, Text(""), *map(Text, lines))


def _hunts(kept: _Kept, bugs: Iterable[Bug], seeds: int, lanes: int) -> dict[str, list[Told]]:
    found: dict[str, list[Told]] = {}
    with contextlib.ExitStack() as stack:
        world: World | None = None

        def hunt(bug: Bug, seed: int) -> Told:
            nonlocal world
            if world is None:
                began = now()
                world = stack.enter_context(RealWorld(lanes=lanes))
                _warm(world, lanes)
                kept.keep(WORLD, 0, Told(round(seconds_since(began), 2)))
            return _ours(world, HuntOptions(seed=seed, bug=bug, lanes=lanes, seconds=SECONDS))

        for bug in bugs:
            key = f"{OURS} {bug.id}"
            found[bug.id] = [kept.of(key, number, partial(hunt, bug, number + 1)) for number in range(seeds)]
    return found


def _warm(world: World, lanes: int) -> None:
    """One healthy run in each lane, so that all of the world is up."""
    for trial in trials(world, [Plan()] * lanes):
        if not trial.verdict.ok:
            raise BenchError(f"a healthy run ended with {trial.verdict.word}; there is nothing to measure")


def _ours(world: World, options: HuntOptions) -> Told:
    """One hunt, to the first plan that fails for certain and in which the bug did harm."""
    if options.bug is None:
        raise BenchError("there is no bug to hunt")
    began, plans = now(), 0
    with closing(hunting(world, options)) as ended:
        for trial in ended:
            plans += 1
            seconds = seconds_since(began)
            if seconds < SECONDS and options.bug.is_detected_by(trial.verdict):
                return Told(round(seconds, 2), trial.verdict.word, plans)
    return Told(round(seconds_since(began), 2), plans=plans)


def _baselines(kept: _Kept, bug: Bug) -> dict[str, list[Told]]:
    return {
        way: [kept.of(f"{way} {bug.id}", number, partial(_confirmed, way, bug, number)) for number in range(count)]
        for way, count in TRIALS.items()
    }


def _controls(kept: _Kept, bugs: Sequence[Bug]) -> dict[str, Told]:
    """Each baseline once with every relay strategy of the bugs, and without a bug."""
    relays = dict.fromkeys(_without(bug, _engine(bug)).relay for bug in bugs)
    names = {f"{way} without a bug, {relay}": (way, relay) for relay in relays for way in TRIALS}
    return {name: kept.of(name, 0, partial(_control, way, Case(relay=relay))) for name, (way, relay) in names.items()}


def _control(way: str, engine: Case) -> Told:
    return _searched(way, engine, 0)[0]


def _confirmed(way: str, bug: Bug, number: int) -> Told:
    """One search by a baseline; its failing case is run once more without the bug."""
    told, failing = _searched(way, _engine(bug), number)
    return told if failing is None else structs.replace(told, without=case.run(_without(bug, failing)))


def _searched(way: str, engine: Case, number: int) -> tuple[Told, Case | None]:
    if way == PYTEST:
        flags = ["-x", "-q", "-s", "-p", "no:cacheprovider", "-c", os.devnull]
        file = ["--pyargs", "harness.bench.baselines.seed_pytest"]
        ended = program.run("pytest", [*flags, *file], engine, CASES_SECONDS)
    else:
        ended = program.run(_PROGRAMS[way], [str(number + 1)], engine, BUDGET)
    seconds, finding = round(ended.seconds, 2), ended.finding
    return (Told(seconds), None) if finding is None else (Told(seconds, finding.wrong), finding.case)


def _engine(bug: Bug) -> Case:
    return Case(bug=bug.plugin, relay=bug.engine.relay, config=dict(bug.engine.config))


def _without(bug: Bug, failing: Case) -> Case:
    return structs.replace(failing, bug="", relay=bug.sound or failing.relay)


def _row(bug: Bug, ours: Sequence[Told], theirs: dict[str, list[Told]]) -> dict[str, Any]:
    columns = {way: _column(told) for way, told in {OURS: ours, **theirs}.items()}
    mine, other = columns[OURS], columns[HYPOTHESIS]["median"]
    # Of a search that found nothing only a lower bound is known: a bug that ours does not find makes no ratio at all.
    ratio = (BUDGET if other is None else other) / mine["median"] if mine["median"] is not None else 0.0
    return {
        "bug": bug.id,
        "name": bug.name,
        **columns,
        "ratio": round(ratio, 1),
        "censored": other is None,
        "missed": mine["found"] < len(ours) and any(columns[way]["found"] for way in SEARCHES),
    }


def _column(told: Sequence[Told]) -> dict[str, Any]:
    # What found nothing took longer than all that did: the median is then of those, or not known.
    middle = median(sorted(one.seconds if one.is_found else math.inf for one in told))
    return {
        "median": None if math.isinf(middle) else round(middle, 2),
        "found": sum(one.is_found for one in told),
        "seconds": [one.seconds for one in told],
        "plans": [one.plans for one in told],
        "words": sorted({one.found for one in told if one.is_found}),
        "alarms": sum(bool(one.found and one.without) for one in told),
    }
