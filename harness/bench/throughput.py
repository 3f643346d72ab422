"""throughput: real TP = 2 runs per second of the harness beside the seed's way, in paired rounds.

Both sides run `tiny` with the handshake relay and no delays: a client process, one request of four tokens, a clean
stop. The harness uses all lanes, as it does when it hunts; the seed's way runs one test after another, as a test
suite does. Each round measures both, one directly after the other, in an order that alternates.
"""

from __future__ import annotations

import os
import subprocess
from statistics import median
from typing import Any

from harness.bench import BenchError, Options
from harness.bench.seed_way import MAX_TOKENS, PROMPT
from harness.clock import now, seconds_since
from harness.interpreter import python
from harness.plan import EngineOptions, Plan, Request, Topology, Workload
from harness.statistics import interval
from harness.trial import trials
from harness.world import World
from harness.world.real import RealWorld

USES = ("rounds", "lanes")
"""The options that apply."""

BATCHES = 6
"""Runs of the harness per lane and round: enough to keep all lanes busy for most of the batch."""

SEED_RUNS = 2
"""Runs of the seed's way per round."""

_PLAN = Plan(
    topology=Topology(tp=2),
    engine=EngineOptions(model="tiny", relay="handshake", timeouts="default"),
    workload=Workload(requests=(Request(prompt=PROMPT, max_tokens=MAX_TOKENS),)),
)


def measure(options: Options) -> dict[str, Any]:
    """Measures in paired rounds (10 by default). Raises BenchError if a run of either side does not end well."""
    rounds = options.rounds or 10
    width = options.lanes or RealWorld.default_lanes()
    batch = BATCHES * width
    ours: list[float] = []
    theirs: list[float] = []
    versions: dict[str, str] = {}
    with RealWorld(lanes=width) as world:
        versions = _harness_rate(world, width)[1]
        for index in range(rounds):
            options.show(f"measuring  round {index + 1} of {rounds}")
            if index % 2:
                theirs.append(_seed_rate())
            ours.append(_harness_rate(world, batch)[0])
            if index % 2 == 0:
                theirs.append(_seed_rate())
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {
        "name": "throughput",
        "figures": {
            "harness_runs_per_second": round(median(ours), 2),
            "seed_way_runs_per_second": round(median(theirs), 3),
            "ratios": [round(ratio, 1) for ratio in ratios],
            "lanes": width,
        },
        "ratio": round(median(ratios), 2),
        "interval": [round(edge, 2) for edge in interval(ratios)],
        "runs": {"rounds": rounds, "harness": batch * rounds, "seed_way": SEED_RUNS * rounds},
        "versions": versions,
        "cores": len(os.sched_getaffinity(0)),
    }


def _harness_rate(world: World, runs: int) -> tuple[float, dict[str, str]]:
    """Runs per second, and the versions that the runs report."""
    began = now()
    versions: dict[str, str] = {}
    for trial in trials(world, [_PLAN] * runs):
        if not trial.verdict.ok:
            raise BenchError(f"a run of the harness ended with {trial.verdict.word}; there is nothing to measure")
        versions = trial.verdict.versions or trial.history.versions
    return runs / seconds_since(began), versions


def _seed_rate() -> float:
    began = now()
    for _ in range(SEED_RUNS):
        done = subprocess.run(python("harness.bench.seed_way"), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise BenchError(f"a run of the seed's way ended with exit status {done.returncode}: {last}")
    return SEED_RUNS / seconds_since(began)
