"""Each oracle on real runs: an engine that is wrong in its way is found out, and the same plan passes without that."""

from __future__ import annotations

import msgspec
import pytest

from harness import plan as plans
from harness.faults import Close, Duplicate, Fault, Flood, Kill, Poison
from harness.instant import Instant
from harness.judge import judge
from harness.oracles import ORACLES
from harness.plan import EngineOptions, Plan, Request, Topology, Workload
from harness.world.real import RealWorld

PAIR = (Request((1, 2, 3), 4), Request((7, 8), 3))
LONG = (Request((1, 2, 3), 60),)
THREE = (Request((1, 2, 3), 4), Request((7, 8), 3), Request((1,), 3))


def _plan(*faults: Fault, requests: tuple[Request, ...] = PAIR, **config: int) -> Plan:
    options = EngineOptions(config=dict(config))
    made = Plan(topology=Topology(tp=2), engine=options, workload=Workload(requests), faults=faults)
    plans.check(made)
    return made


def _kill(at: str) -> Kill:
    return Kill(Instant.parse(at))


_KILL_IN_STEP = _kill("dp0.rank1:tp.all_reduce#5:before")
_WRONG = "tests.harness.oracles.wrong"

CASES: dict[tuple[str, str], Plan] = {
    ("TERM", "term"): _plan(),
    ("PROGRESS", "progress"): _plan(requests=THREE, max_num_seqs=1),
    ("START", "start"): _plan(_kill("dp0.rank1:relay.connect#1:before")),
    ("ORDER", "order"): _plan(Duplicate(link="relay", frame="step", victim="dp0.rank1", nth=2)),
    ("CONSERVE", "conserve"): _plan(),
    ("GOLD", "gold"): _plan(),
    ("AGREE", "agree"): _plan(),
    ("DEATH", "death"): _plan(),
    ("CAUSE", "cause"): _plan(_KILL_IN_STEP),
    ("HEALTH", "health"): _plan(_KILL_IN_STEP),
    ("BOUND", "bound"): _plan(_KILL_IN_STEP),
    ("BOUND", "crowded"): _plan(Flood(count=20), requests=LONG, max_num_seqs=2, max_waiting=4),
    ("BLAST", "blast"): _plan(Poison(what="token"), requests=LONG),
    ("STOP", "stop"): _plan(),
    ("LEAK", "tests.harness.careless"): _plan(Close(after_tokens=2), requests=LONG),
    ("ORPHAN", "scenarios.bugs.own_write_end"): _plan(_kill("client:output.recv#1:after")),
    ("RESIDUE", "residue"): _plan(),
}
"""Plans by the oracle that is to find something, and by the plugin that gives it that: a name here, or a module."""


def test_every_oracle_has_its_real_runs() -> None:
    assert {code for code, _ in CASES} == set(ORACLES)


@pytest.mark.parametrize(("code", "plugin"), list(CASES))
def test_an_engine_that_is_wrong_in_its_way_is_found_out(world: RealWorld, code: str, plugin: str) -> None:
    plan = CASES[code, plugin]
    module = plugin if "." in plugin else f"{_WRONG}.{plugin}"
    verdict = judge(world.run(msgspec.structs.replace(plan, engine=_with(plan.engine, module))))
    found = {finding.oracle: finding for finding in verdict.findings}
    assert verdict.verdict == "violated", verdict
    assert code in found, verdict.findings
    assert [count.fired for count in verdict.faults] == [1] * len(plan.faults)


@pytest.mark.parametrize("key", list(CASES), ids=str)
def test_the_same_plan_passes_without_that(world: RealWorld, key: tuple[str, str]) -> None:
    verdict = judge(world.run(CASES[key]))
    assert verdict.ok, verdict.findings
    assert [count.fired for count in verdict.faults] == [1] * len(CASES[key].faults)


def _with(options: EngineOptions, module: str) -> EngineOptions:
    return msgspec.structs.replace(options, plugins=(module,))
