"""shrink: whether a failing plan that is full of what does not matter comes down to what does, idle and under load.

The plan of each of ten seeded bugs, which is the smallest that shows it, is padded to six faults and nine settings that
the failure does not need. Then it is shrunk, once on an idle machine and once with a busy process on each core. It is
down to the known minimum if it has as many faults, of the same kinds, as few requests and ranks, and no setting more.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, structs

from harness import scenario
from harness.bench import BenchError, Options
from harness.bench.journal import Journal
from harness.bench.spin import beside
from harness.bug import Bug
from harness.clock import now, seconds_since
from harness.faults import Delay, Fault, Hold, kind_of
from harness.instant import Instant
from harness.plan import Plan, Request
from harness.shrink import Shrinker
from harness.targets import get
from harness.trial import repeat
from harness.verdict import EXIT_FAILED, Verdict
from harness.world import World
from harness.world.real import RealWorld

if TYPE_CHECKING:
    from rich.console import RenderableType

USES = ("bugs", "lanes", "out", "fresh")
"""The options that apply."""

BUGS = ("H1", "H3", "H4", "C1", "S1", "E1", "E2", "U1", "T2", "A1")
"""From every group of bugs that one plan shows at once; with one fault or none."""

FAULTS, SETTINGS = 6, 9

NEEDED = 9
"""Of the ten, how many have to come down to their minimum."""

LOADS = ("idle", "busy")

_MORE = (Request(prompt=(9, 99, 3), max_tokens=3), Request(prompt=(5, 4), max_tokens=2))
_MILD = 0.02
"""Seconds of a fault that does not matter."""


class Told(Struct, frozen=True):
    """One shrinking: whether it reached the minimum, in how many runs and seconds, and what was left too much."""

    reached: bool
    runs: int
    seconds: float
    left: str = ""


def padded(bug: Bug, plan: Plan) -> Plan:
    """The plan with faults and settings that its failure does not need, six and nine in all."""
    first, *_, last = plan.topology.ranks
    mild: list[Fault] = [
        Delay(at=Instant(last, "start"), seconds=_MILD, optional=True),
        Delay(at=Instant(first, "control.bind"), seconds=_MILD, optional=True),
        Delay(at=Instant(first, "startup.send", "ready", side="before"), seconds=_MILD, optional=True),
        Delay(at=Instant("client", "input.send", "add", side="before"), seconds=_MILD, optional=True),
        Hold(link="control", frame="join", victim=last, or_after=_MILD, optional=True),
        Hold(link="input", frame="add", victim=first, or_after=_MILD, optional=True),
    ]
    workload = plan.workload
    config: dict[str, bool | int | float | str] = {
        "log_stats": True,
        "page_size": 8,
        "max_num_seqs": 8,
        "max_batched_tokens": 128,
        "num_pages": 256,
    }
    return structs.replace(
        plan,
        engine=structs.replace(plan.engine, config={**config, **plan.engine.config}),
        workload=structs.replace(
            workload,
            requests=(*workload.requests, *_MORE),
        ),
        faults=(*plan.faults, *mild[: FAULTS - len(plan.faults)]),
        observe=("output",),
        seed=7,
    )


def too_much(plan: Plan, least: Plan) -> str:
    """What a plan has more than the least one, in a few words; empty if nothing."""
    kinds = Counter(map(kind_of, plan.faults)) - Counter(map(kind_of, least.faults))
    counts = {
        "faults": len(plan.faults) - len(least.faults),
        "requests": len(plan.workload.requests) - len(least.workload.requests),
        "ranks": plan.topology.tp - least.topology.tp,
    }
    words = [f"{count} {what}" for what, count in counts.items() if count > 0]
    words += [f"a {kind}" for kind in kinds]
    words += [name for name in plan.engine.config if name not in least.engine.config]
    words += ["observe"] * (plan.observe != least.observe) + ["seed"] * (plan.seed != least.seed)
    return ", ".join(words)


def measure(options: Options) -> dict[str, Any]:
    """Shrinks what is not in the journal yet. Raises ScenarioError for an unknown bug."""
    chosen = [scenario.bug(wanted) for wanted in options.bugs or BUGS]
    told: dict[tuple[str, str], Told] = {}
    with Journal(options.out / "shrink.jsonl", fresh=options.fresh) as journal:
        for load in LOADS:
            with contextlib.ExitStack() as stack:
                world: World | None = None
                for number, bug in enumerate(chosen, 1):
                    line = journal.told(f"{load} {bug.id}", 0)
                    if line is None:
                        if world is None:
                            stack.enter_context(beside(1 if load == "busy" else 0))
                            world = stack.enter_context(RealWorld(lanes=options.lanes or RealWorld.default_lanes()))
                        options.show(f"shrinking  {load}: {bug.id} {bug.name}   {number} of {len(chosen)}")
                        found = _shrink(world, bug, options.lanes or RealWorld.default_lanes())
                        journal.add(f"{load} {bug.id}", 0, line := msgspec.json.encode(found).decode())
                    told[load, bug.id] = msgspec.json.decode(line, type=Told)
    rows: list[dict[str, Any]] = [
        {"bug": bug.id, "name": bug.name, **{load: structs.asdict(told[load, bug.id]) for load in LOADS}}
        for bug in chosen
    ]
    return {
        "name": "shrink",
        "faults": FAULTS,
        "settings": SETTINGS,
        "bugs": rows,
        "needed": math.ceil(NEEDED / len(BUGS) * len(chosen)),
        **{load: sum(row[load]["reached"] for row in rows) for load in LOADS},
    }


def good(result: dict[str, Any]) -> bool:
    """Whether enough plans came down to their minimum, idle and under load."""
    return all(result[load] >= result["needed"] for load in LOADS)


def table(result: dict[str, Any]) -> RenderableType:
    """One line for each bug; below it how many reached the minimum."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("bug", *(f"{load}: {what}" for load in LOADS for what in ("runs", "seconds", "left"))):
        grid.add_column(name, no_wrap="left" not in name, overflow="fold")
    for row in result["bugs"]:
        cells = []
        for load in LOADS:
            one = row[load]
            cells += [
                str(one["runs"]),
                f"{one['seconds']:.0f}",
                one["left"] or ("-" if one["reached"] else "not again"),
            ]
        grid.add_row(row["bug"], *cells, style=None if all(row[load]["reached"] for load in LOADS) else "red")
    many = len(result["bugs"])
    words = f"of {many} at the known minimum   {result['needed']} needed"
    sums = [Text(f"{load}: {result[load]} {words}") for load in LOADS]
    return Group(grid, Text(""), *sums)


def _shrink(world: World, bug: Bug, lanes: int) -> Told:
    least = _plan_of(bug)
    began = now()
    big = padded(bug, least)
    first = _failure(world, bug, big)
    if first is None:
        return Told(False, 0, round(seconds_since(began), 2), "the padded plan does not fail")

    def same(verdict: Verdict) -> bool:
        return (verdict.word, verdict.fingerprint) == (first.word, first.fingerprint)

    shrunk = Shrinker(world, same, width=lanes, allowed=get(big.target).check).shrink(big)
    seconds = round(seconds_since(began), 2)
    if not shrunk.kept:
        return Told(False, shrunk.runs, seconds, "")
    left = too_much(shrunk.plan, least)
    return Told(not left, shrunk.runs, seconds, left)


def _failure(world: World, bug: Bug, plan: Plan) -> Verdict | None:
    """How the padded plan fails, from a few runs: the first for certain."""
    for trial in repeat(world, plan, 5):
        if trial.verdict.exit_code == EXIT_FAILED and bug.is_named_by(trial.verdict):
            return trial.verdict
    return None


def _plan_of(bug: Bug) -> Plan:
    """The plan with the fewest faults that shows the bug."""
    ((member,),) = [one.members for one in scenario.resolve(bug.name)]
    if len(member.plan.faults) > FAULTS:
        raise BenchError(f"bug {bug.id} needs {len(member.plan.faults)} faults, and a padded plan has {FAULTS}")
    return member.plan
