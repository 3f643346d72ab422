"""starts: is the first request, sent the moment the engine is ready, served in every start?

Each start delays every rank by a random time of its own (up to 0.2 s), so that ranks meet in every order; the client
sends its first request as soon as its constructor returns. Done starts are kept in a journal, and an interrupted
benchmark goes on with those that are missing.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

from msgspec import structs

from harness import folder
from harness.bench import Options
from harness.bench.journal import Journal
from harness.faults import Delay
from harness.instant import Instant
from harness.plan import EngineOptions, Plan, Request, Topology, Workload
from harness.targets import get
from harness.trial import trials
from harness.world.real import RealWorld

if TYPE_CHECKING:
    from rich.console import RenderableType

USES = ("rounds", "tp", "relays", "lanes", "out", "fresh")
"""The options that apply."""

STARTS = 1000
"""Starts per relay strategy if nothing else is said."""

LONGEST = 0.2
"""The longest delay of a rank's start, in seconds."""

SERVED = "served"


def plan_of(relay: str, tp: int, index: int) -> Plan:
    """The start number ``index`` of a strategy: the same one whenever it is asked for."""
    stream = random.Random(f"starts/{relay}/{tp}/{index}")
    delays = tuple(
        Delay(at=Instant(f"dp0.rank{rank}", "start"), seconds=max(0.001, round(stream.uniform(0, LONGEST), 3)))
        for rank in range(tp)
    )
    return Plan(
        topology=Topology(tp=tp),
        engine=EngineOptions(relay=relay, timeouts="default"),
        workload=Workload(requests=(Request(prompt=(1, 2, 3), max_tokens=2),)),
        faults=delays,
        seed=index,
        budget=60.0,
    )


def measure(options: Options) -> dict[str, Any]:
    """Runs the starts that are not in the journal yet; each that is not served leaves the folder of a finding."""
    count, tp = options.rounds or STARTS, options.tp or 2
    relays = options.relays or get("engine").safe_relays()
    plans = {relay: [plan_of(relay, tp, index) for index in range(count)] for relay in relays}
    with Journal(options.out / "starts.jsonl", fresh=options.fresh) as journal:
        missing = [plan for chosen in plans.values() for plan in chosen if journal.told(plan.digest, 0) is None]
        resumed = count * len(relays) - len(missing)
        if missing:
            _run(missing, journal, options)
        told = {relay: Counter(journal.told(plan.digest, 0) for plan in chosen) for relay, chosen in plans.items()}
    return {
        "name": "starts",
        "tp": tp,
        "starts": count,
        "resumed": resumed,
        "relays": {relay: dict(counts) for relay, counts in told.items()},
    }


def good(result: dict[str, Any]) -> bool:
    """Whether every start of every strategy was served."""
    return all(counts == {SERVED: result["starts"]} for counts in result["relays"].values())


def table(result: dict[str, Any]) -> RenderableType:
    """One line per strategy."""
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title=None)
    for heading in ("relay", "ranks", "first request served", "otherwise"):
        grid.add_column(heading)
    for relay, counts in result["relays"].items():
        others = ", ".join(f"{word} {count}" for word, count in sorted(counts.items()) if word != SERVED)
        grid.add_row(relay, str(result["tp"]), f"{counts.get(SERVED, 0)} of {result['starts']}", others or "-")
    return grid


def _run(plans: list[Plan], journal: Journal, options: Options) -> None:
    done = 0
    with (
        RealWorld(lanes=options.lanes or RealWorld.default_lanes()) as world,
        closing(trials(world, plans, scenario="starts")) as ended,
    ):
        for trial in ended:
            verdict = structs.replace(trial.verdict, seed=trial.plan.seed)
            told = SERVED if verdict.ok and verdict.served == 1 else verdict.word
            if told != SERVED:
                folder.write(options.out, structs.replace(trial, verdict=verdict))
            journal.add(trial.plan.digest, 0, told)
            done += 1
            options.show(f"measuring  start {done} of {len(plans)}")
