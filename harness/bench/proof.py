"""proof: how long after the last progress a wedge is proved, and whether any proof is refuted.

Wedges of several shapes, each a scenario of the group ``shapes``, are brought about one after another and timed from
the last event of any process to the end of the second look on which the proof stands. All of it is done twice: on the
machine as it is, and beside two busy processes for each core. Shapes whose waits are made in slices are told apart: no
proof of those can come before a whole slice is over.

With ``--leave`` each wedge is watched on for so many seconds; one that moves refutes its proof.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from contextlib import closing
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from harness import scenario
from harness.bench import Options
from harness.bench.journal import Journal
from harness.bench.spin import beside
from harness.history import History
from harness.scenario import Scenario
from harness.stillness import slice_of
from harness.targets import get
from harness.trial import trials
from harness.verdict import Verdict
from harness.world.real import RealWorld

if TYPE_CHECKING:
    from rich.console import RenderableType

USES = ("rounds", "lanes", "out", "fresh", "leave")
"""The options that apply."""

RUNS = 45
"""Wedges of each shape and on each machine if nothing else is said."""

MOST_AT_THE_MEDIAN, MOST_AT_THE_END = 50.0, 250.0
"""Milliseconds that a proof without slices may take at the median, and at the 99th percentile."""

AFTER_A_SLICE = 50.0
"""Milliseconds after the longest slice in which a proof with slices has to stand, at the median."""

BUSY = 2
"""Busy processes for each core."""

MACHINES = ("idle", "busy")
GROUP = "shapes"


class Wedge(Struct, frozen=True):
    """One wedge that was to be proved: how long that took (milliseconds), and the longest slice of its waits."""

    word: str
    took: float = 0.0
    slice: float = 0.0
    moved: bool = False
    named: bool = False


def measure(options: Options) -> dict[str, Any]:
    """Measures what is not in the journal yet."""
    runs = options.rounds or RUNS
    shapes = scenario.resolve(GROUP)
    wedges: dict[tuple[str, str], list[Wedge]] = {}
    with Journal(options.out / "proof.jsonl", fresh=options.fresh) as journal:
        for machine in MACHINES:
            with beside(BUSY if machine == "busy" else 0):
                for shape in shapes:
                    wedges[machine, shape.name] = _wedges(machine, shape, runs, journal, options)
    found = {machine: [_row(shape, wedges[machine, shape.name]) for shape in shapes] for machine in MACHINES}
    everything = [wedge for some in wedges.values() for wedge in some]
    return {
        "name": "proof",
        "runs": len(everything),
        "left_alone": options.leave,
        "refuted": sum(wedge.moved for wedge in everything),
        **_overall([wedge for (machine, _), some in wedges.items() if machine == "idle" for wedge in some]),
        "busy": _overall([wedge for (machine, _), some in wedges.items() if machine == "busy" for wedge in some]),
        "shapes": found,
        "needed": {"median_ms": MOST_AT_THE_MEDIAN, "p99_ms": MOST_AT_THE_END},
        "versions": {"python": platform.python_version()},
        "cores": len(os.sched_getaffinity(0)),
    }


def good(result: dict[str, Any]) -> bool:
    """Whether every wedge was proved and named, none moved, and the idle machine's proofs came soon enough."""
    rows = [row for machine in MACHINES for row in result["shapes"][machine]]
    proved = all(row["proved"] == row["named"] == row["runs"] for row in rows)
    soon = result["median_ms"] <= MOST_AT_THE_MEDIAN and result["p99_ms"] <= MOST_AT_THE_END
    sliced = all(
        row["median_ms"] <= row["slice_ms"] + AFTER_A_SLICE for row in result["shapes"]["idle"] if row["slice_ms"]
    )
    return proved and soon and sliced and not result["refuted"]


def table(result: dict[str, Any]) -> RenderableType:
    """A line for each shape, the two machines side by side."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column("milliseconds", no_wrap=True)
    for heading in ("proved", "named", "median", "p99", "busy", "named", "median", "p99"):
        grid.add_column(heading, justify="right", no_wrap=True)
    idle, busy = (result["shapes"][machine] for machine in MACHINES)
    for row, other in zip(idle, busy, strict=True):
        grid.add_row(row["shape"] + ("*" if row["slice_ms"] else ""), *_cells(row), *_cells(other))
    sliced = max((row["slice_ms"] for row in (*idle, *busy)), default=0.0)
    note = f"* waits in slices of {sliced:.0f} ms at most, and may take {AFTER_A_SLICE:.0f} ms more than that\n"
    word = "good" if good(result) else "not good enough"
    left = (
        f"; each left alone for {result['left_alone']:g} s, {result['refuted']} moved" if result["left_alone"] else ""
    )
    needed = result["needed"]
    return Group(
        grid,
        Text(f"{note if sliced else ''}"),
        Text(
            f"without slices: median {result['median_ms']:.1f} ms, 99th percentile {result['p99_ms']:.1f} ms; beside "
            f"busy processes {result['busy']['median_ms']:.1f} and {result['busy']['p99_ms']:.1f} ms"
        ),
        Text(
            f"{result['runs']} wedges on {result['cores']} cores{left}; needed: {needed['median_ms']:.0f} and "
            f"{needed['p99_ms']:.0f} ms: {word}",
            style="bold" if good(result) else "bold red",
        ),
    )


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return f"{row['proved']}/{row['runs']}", str(row["named"]), f"{row['median_ms']:.1f}", f"{row['p99_ms']:.1f}"


def _wedges(machine: str, shape: Scenario, runs: int, journal: Journal, options: Options) -> list[Wedge]:
    plan = shape.members[0].plan
    name = f"{machine} {options.leave:g} {plan.digest}"
    missing = [run for run in range(runs) if journal.told(name, run) is None]
    if missing:
        with (
            RealWorld(lanes=options.lanes or 1, leave=options.leave) as world,
            closing(trials(world, [plan] * len(missing), scenario=shape.name)) as ended,
        ):
            for run, trial in zip(missing, ended, strict=True):
                wedge = _wedge(trial.history, trial.verdict, shape.members[0].blame)
                journal.add(name, run, msgspec.json.encode(wedge).decode())
                options.show(f"measuring  {machine}: {shape.name} {run + 1} of {runs}")
    told = (journal.told(name, run) for run in range(runs))
    return [msgspec.json.decode(one, type=Wedge) for one in told if one is not None]


def _wedge(history: History, verdict: Verdict, blame: str) -> Wedge:
    if verdict.blame is None or verdict.proof is None:
        return Wedge(verdict.word, moved=history.moved)
    waits = [wait for process in history.look.b.processes for wait in process.waits] if history.look else []
    slices = get(history.plan.target).slices(history.plan)
    longest = max((found.every for wait in waits if (found := slice_of(wait, slices))), default=0.0)
    named = verdict.blame.names(blame)
    return Wedge(verdict.word, verdict.proof.after_progress_ms, longest * 1000, history.moved, named)


def _row(shape: Scenario, wedges: Sequence[Wedge]) -> dict[str, Any]:
    proved = [wedge for wedge in wedges if wedge.word == "wedged (proved)"]
    return {
        "shape": shape.name,
        "title": shape.title,
        "runs": len(wedges),
        "proved": len(proved),
        "named": sum(wedge.named for wedge in proved),
        "slice_ms": max((wedge.slice for wedge in proved), default=0.0),
        **_figures([wedge.took for wedge in proved]),
    }


def _overall(wedges: Sequence[Wedge]) -> dict[str, float]:
    """The figures of what was proved without slices."""
    return _figures([wedge.took for wedge in wedges if wedge.word == "wedged (proved)" and not wedge.slice])


def _figures(times: Sequence[float]) -> dict[str, float]:
    ordered = sorted(times)
    if not ordered:
        return {"median_ms": 0.0, "p99_ms": 0.0}
    last = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return {"median_ms": round(median(ordered), 1), "p99_ms": round(last, 1)}
