"""bugs: how surely and how soon a hunt finds each seeded bug, and whether what it finds says what is wrong.

For each bug some trials, each a hunt with default settings and another seed, stopped at the first detection. A plan
detects the bug if its verdict fails for certain (a proved wedge or a broken rule) and the bug's canary says that it did
something wrong in that very run. Then the same plan is run without the bug, and has to pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, structs

from harness import folder, scenario
from harness.bench import BenchError, Options
from harness.bench.journal import Journal
from harness.bug import Bug, Sighting
from harness.clock import now, seconds_since
from harness.search.hunt import HuntOptions, hunting
from harness.trial import Trial, repeat
from harness.verdict import EXIT_FAILED, EXIT_UNKNOWN
from harness.world import World
from harness.world.real import RealWorld

if TYPE_CHECKING:
    from rich.console import RenderableType

USES = ("rounds", "bugs", "lanes", "out", "fresh")
"""The options that apply."""

TRIALS = 3
"""Hunts for each bug if nothing else is said."""

SECONDS = 60.0
"""For how long a hunt begins plans."""

DETECTED_SHARE, NAMED_SHARE = 22 / 24, 20 / 24
"""Of all bugs, how many have to be detected in every trial, and how many named whenever they are detected."""


class Told(Struct, frozen=True):
    """One trial. ``seconds`` and ``plans`` are to the detection, or all there were; ``found`` is the verdict's word.

    ``reached`` and ``triggered`` count plans, ``others`` those that failed although the bug did nothing in them.
    ``without`` is what the plan came to without the bug.
    """

    detected: bool
    named: bool
    seconds: float
    plans: int
    reached: int
    triggered: int
    others: int
    found: str = ""
    without: str = ""

    @property
    def silent_without(self) -> bool:
        """Whether nobody raised an alarm over the plan without the bug."""
        return self.without.partition(" ")[0] in ("", "passed", "vacuous")


def measure(options: Options) -> dict[str, Any]:
    """Hunts for what is not in the journal yet. Raises ScenarioError for an unknown bug."""
    count = options.rounds or TRIALS
    chosen = [scenario.bug(wanted) for wanted in options.bugs] or list(scenario.bugs())
    if not chosen:
        raise BenchError("no bug is shipped")
    wanted = [(bug, number) for bug in chosen for number in range(count)]
    told: dict[tuple[str, int], Told] = {}
    with Journal(options.out / "bugs.jsonl", fresh=options.fresh) as journal:
        for bug, number in wanted:
            line = journal.told(bug.id, number)
            if line is not None:
                told[bug.id, number] = msgspec.json.decode(line, type=Told)
        missing = [(bug, number) for bug, number in wanted if (bug.id, number) not in told]
        resumed = len(told)
        if missing:
            with RealWorld(lanes=options.lanes or RealWorld.default_lanes()) as world:
                for done, (bug, number) in enumerate(missing, 1):
                    options.show(f"hunting    {bug.id} {bug.name}   trial {done} of {len(missing)}")
                    found = _trial(world, bug, number + 1, options)
                    told[bug.id, number] = found
                    journal.add(bug.id, number, msgspec.json.encode(found).decode())
    rows = [_row(bug, [told[bug.id, number] for number in range(count)]) for bug in chosen]
    return {
        "name": "bugs",
        "trials": count,
        "resumed": resumed,
        "seconds": SECONDS,
        "bugs": rows,
        "detected_in_all_trials": sum(row["detected"] == count for row in rows),
        "detected_needed": math.ceil(DETECTED_SHARE * len(rows)),
        "named": sum(0 < row["detected"] == row["named"] for row in rows),
        "named_needed": math.ceil(NAMED_SHARE * len(rows)),
        "silent_without": sum(row["silent_without"] for row in rows),
    }


def good(result: dict[str, Any]) -> bool:
    """Whether enough bugs were detected and named, and no plan that detected one fails without it."""
    return bool(
        result["detected_in_all_trials"] >= result["detected_needed"]
        and result["named"] >= result["named_needed"]
        and result["silent_without"] == len(result["bugs"])
    )


def table(result: dict[str, Any]) -> RenderableType:
    """One line for each bug; below it the three sums that are asked for."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("bug", "detected", "seconds", "plans", "named", "reached", "triggered", "without"):
        grid.add_column(name, no_wrap=True)
    grid.add_column("", overflow="fold")
    trials_ = result["trials"]
    for row in result["bugs"]:
        limit = f"> {result['seconds']:.0f}"
        grid.add_row(
            row["bug"],
            f"{row['detected']} of {trials_}",
            f"{row['median_seconds']:.1f}" if row["median_seconds"] is not None else limit,
            f"{row['median_plans']:.0f}" if row["median_plans"] is not None else "-",
            f"{row['named']} of {row['detected']}",
            f"{row['reached']}/{row['plans']}",
            str(row["triggered"]),
            "silent" if row["silent_without"] else ", ".join(row["without"]),
            row["name"],
            style=None if row["detected"] == row["named"] == trials_ and row["silent_without"] else "red",
        )
    many = len(result["bugs"])
    sums = [
        (f"detected in all {trials_} trials", result["detected_in_all_trials"], result["detected_needed"]),
        ("named when detected", result["named"], result["named_needed"]),
        ("silent without the bug", result["silent_without"], many),
    ]
    lines = [Text(f"{words:<25}  {count} of {many}   {needed} needed") for words, count, needed in sums]
    return Group(grid, Text(""), *lines)


def _trial(world: World, bug: Bug, seed: int, options: Options) -> Told:
    hunted = HuntOptions(seed=seed, bug=bug, seconds=SECONDS, lanes=options.lanes or RealWorld.default_lanes())
    began = now()
    seen = Sighting.of(bug, ())
    others = 0
    detecting: Trial | None = None
    seconds = 0.0
    with closing(hunting(world, hunted)) as ended:
        for trial in ended:
            one = Sighting.of(bug, [trial.verdict])
            seen = seen.and_then(one)
            seconds = seconds_since(began)
            if bug.is_detected_by(trial.verdict):
                detecting = trial
                break
            others += trial.verdict.exit_code in (EXIT_FAILED, EXIT_UNKNOWN) and not one.triggered
    told = Told(
        detected=detecting is not None,
        named=detecting is not None and bug.is_named_by(detecting.verdict),
        seconds=round(seconds, 2),
        plans=seen.runs,
        reached=seen.reached,
        triggered=seen.triggered,
        others=others,
    )
    if detecting is None:
        return told
    _keep(detecting, f"bug-{bug.id}-{seed}", options.out)
    (again,) = repeat(world, bug.taken_from(detecting.plan), 1, scenario=bug.name, seed=seed)
    told = structs.replace(told, found=detecting.verdict.word, without=again.verdict.word)
    if not told.silent_without:
        _keep(again, f"bug-{bug.id}-{seed}-without", options.out)
    return told


def _keep(trial: Trial, name: str, out: Path) -> None:
    """Writes the folder of a trial, for whoever wants to know what it was."""
    folder.write(out, trial.named(name))


def _row(bug: Bug, told: Sequence[Told]) -> dict[str, Any]:
    detections = [one for one in told if one.detected]
    # A trial that found nothing took longer than all that did: the median is then of those, or not known.
    times = sorted([one.seconds if one.detected else math.inf for one in told])
    counts = sorted([one.plans if one.detected else math.inf for one in told])
    return {
        "bug": bug.id,
        "name": bug.name,
        "detected": len(detections),
        "named": sum(one.named for one in detections),
        "median_seconds": _known(median(times)),
        "median_plans": _known(median(counts)),
        "seconds": [one.seconds for one in told],
        "plans": sum(one.plans for one in told),
        "reached": sum(one.reached for one in told),
        "triggered": sum(one.triggered for one in told),
        "others": sum(one.others for one in told),
        "found": [one.found for one in told],
        "without": [one.without for one in told],
        "silent_without": all(one.silent_without for one in told),
    }


def _known(value: float) -> float | None:
    return None if math.isinf(value) else value
