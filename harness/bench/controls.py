"""controls: how often the harness raises a false alarm.

The scenarios of the group ``controls`` are engines and machines with which nothing is wrong: slow, busy, stopped for a
while, shut down in order. Each is run many times, with each safe relay strategy in turn; that of the oversubscribed
machine beside four busy processes for each core. A run that ends as ``wedged`` or ``violated`` is a false alarm. Beside
the count stands the upper bound of its rate: the highest rate with which so few would still come up once in twenty
times.
"""

from __future__ import annotations

import math
import os
import platform
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from msgspec import structs

from harness import folder, scenario
from harness.bench import Options
from harness.bench.journal import Journal
from harness.bench.spin import beside
from harness.plan import Plan
from harness.scenario import Scenario
from harness.targets import get
from harness.trial import trials
from harness.world.real import RealWorld

if TYPE_CHECKING:
    from rich.console import RenderableType

USES = ("rounds", "lanes", "out", "fresh")
"""The options that apply."""

RUNS = 182
"""Runs of each control if nothing else is said: 2,002 of all eleven."""

NEEDED = 0.99
"""The share of runs that have to pass."""

GROUP = "controls"
OVERSUBSCRIBED, BUSY = "oversubscribed", 4
"""The control that needs busy processes, and how many for each core."""

_CERTAINTY = 0.95


def measure(options: Options) -> dict[str, Any]:
    """Runs what is not in the journal yet."""
    runs = options.rounds or RUNS
    rows = []
    with Journal(options.out / "controls.jsonl", fresh=options.fresh) as journal:
        for control in scenario.resolve(GROUP):
            with beside(BUSY if control.name == OVERSUBSCRIBED else 0):
                rows.append(_row(control, _words(control, runs, journal, options)))
    count = sum(row["runs"] for row in rows)
    alarms = sum(row["wedged"] + row["violated"] for row in rows)
    return {
        "name": "controls",
        "runs": count,
        "passed": sum(row["passed"] for row in rows),
        "false_alarms": alarms,
        "rate_at_most": round(bound(alarms, count), 6),
        "needed": NEEDED,
        "rows": rows,
        "versions": {"python": platform.python_version()},
        "cores": len(os.sched_getaffinity(0)),
    }


def good(result: dict[str, Any]) -> bool:
    """Whether there was no false alarm, and nearly every run passed."""
    return not result["false_alarms"] and result["passed"] >= NEEDED * result["runs"]


def table(result: dict[str, Any]) -> RenderableType:
    """A line for each control."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column("", no_wrap=True)
    for heading in ("runs", "passed", "wedged", "violated", "other"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for row in result["rows"]:
        alarm = "bold red" if row["wedged"] or row["violated"] else ""
        cells = (str(row[name]) for name in ("runs", "passed", "wedged", "violated", "other"))
        grid.add_row(row["title"], *cells, style=alarm)
    share = result["passed"] / max(result["runs"], 1)
    return Group(
        grid,
        Text(""),
        Text(
            f"{result['false_alarms']} false alarms in {result['runs']:,} runs: at most {result['rate_at_most']:.2%} "
            f"of runs, with a certainty of {_CERTAINTY:.0%}; {share:.1%} passed",
            style="bold" if good(result) else "bold red",
        ),
    )


def bound(alarms: int, runs: int) -> float:
    """The upper end of the one-sided interval of a rate (Clopper and Pearson 1934)."""
    low, high = alarms / max(runs, 1), 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(alarms, runs, middle) > 1 - _CERTAINTY else (low, middle)
    return high


def _at_most(alarms: int, runs: int, rate: float) -> float:
    """The chance of at most so many alarms in so many runs."""
    return math.fsum(math.comb(runs, k) * rate**k * (1 - rate) ** (runs - k) for k in range(alarms + 1))


def _words(control: Scenario, runs: int, journal: Journal, options: Options) -> list[str]:
    """What came of each run, as verdicts say it."""
    plans = [_plan(control, run) for run in range(runs)]
    missing = [run for run in range(runs) if journal.told(plans[run].digest, run) is None]
    if missing:
        waiting: dict[str, list[int]] = {}
        for run in missing:
            waiting.setdefault(plans[run].digest, []).append(run)
        with (
            RealWorld(lanes=options.lanes or RealWorld.default_lanes()) as world,
            closing(trials(world, [plans[run] for run in missing], scenario=control.name)) as ended,
        ):
            for done, trial in enumerate(ended, 1):
                journal.add(trial.plan.digest, waiting[trial.plan.digest].pop(0), trial.verdict.verdict)
                if not trial.verdict.ok:
                    folder.write(options.out, trial)
                options.show(f"measuring  {control.name} {done} of {len(missing)}")
    return [journal.told(plan.digest, run) or "" for run, plan in enumerate(plans)]


def _plan(control: Scenario, run: int) -> Plan:
    plan = control.members[0].plan
    relays = get(plan.target).safe_relays()
    return structs.replace(plan, engine=structs.replace(plan.engine, relay=relays[run % len(relays)]))


def _row(control: Scenario, words: Sequence[str]) -> dict[str, Any]:
    count = Counter(words)
    known = {name: count[name] for name in ("passed", "wedged", "violated")}
    return {
        "control": control.name,
        "title": control.title,
        "runs": len(words),
        **known,
        "other": len(words) - sum(known.values()),
    }
