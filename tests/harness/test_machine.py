"""The machine: every step is a plan that is run from the start, and what fails is shrunk to its fewest steps."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec import structs

from harness import trial
from harness.faults import Drop
from harness.history import History
from harness.plan import check
from harness.search.machine import PlanMachine, StepFailedError
from harness.verdict import Verdict
from harness.world.real import RealWorld
from tests.harness.fake_world import FakeWorld, judge_by, verdict_of, wedge_of

FEW = settings(
    max_examples=30,
    stateful_step_count=6,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def machine_by(monkeypatch: pytest.MonkeyPatch, judged: dict[str, int] | None = None) -> tuple[type, FakeWorld]:
    """A machine in a world without processes, where a dropped frame wedges a run; ``judged`` counts runs of a plan."""
    world_ = FakeWorld()

    def judge(history: History) -> Verdict:
        plan = history.plan
        drops = any(isinstance(fault, Drop) for fault in plan.faults)
        if judged is not None:
            judged[plan.digest] = judged.get(plan.digest, 0) + 1
            return wedge_of(plan) if drops and judged[plan.digest] == 1 else verdict_of(plan)
        return wedge_of(plan) if drops else verdict_of(plan)

    monkeypatch.setattr(trial, "judge", judge_by(judge))

    class Machine(PlanMachine):
        world = world_

    return Machine, world_


def test_a_failing_step_is_shrunk_to_the_fewest_and_tells_the_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, world = machine_by(monkeypatch)
    machine.kinds = ("delay", "close", "drop")  # type: ignore[attr-defined]
    with pytest.raises(StepFailedError, match=r"wedged \(proved\)") as caught:
        run_state_machine_as_test(machine, settings=FEW)
    steps = [line for line in "\n".join(caught.value.__notes__).splitlines() if re.match(r"state\.\w+\(", line)]
    assert [step.partition("(")[0] for step in steps] == ["state.begins", "state.breaks", "state.teardown"]
    for plan in world.runs:
        check(plan)


def test_each_step_asks_or_breaks_one_thing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, world = machine_by(monkeypatch)
    machine.kinds = ("delay", "close", "hold")  # type: ignore[attr-defined]
    run_state_machine_as_test(machine, settings=FEW)

    sizes: list[int] = []
    for number, plan in enumerate(world.runs):
        work, before = plan.workload, world.runs[:number]
        sizes.append(len(work.requests) + len(work.utilities) + len(plan.faults))
        one_less = [
            structs.replace(plan, faults=plan.faults[:-1]),
            structs.replace(plan, workload=structs.replace(work, requests=work.requests[:-1])),
            structs.replace(plan, workload=structs.replace(work, utilities=work.utilities[:-1])),
        ]
        assert sizes[-1] == 1 or any(plan in before for plan in one_less)
    assert max(sizes) > 3
    assert {plan.topology.tp for plan in world.runs} == {1, 2, 3}


def test_a_failure_that_does_not_come_back_is_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, _ = machine_by(monkeypatch, {})
    machine.kinds = ("drop",)  # type: ignore[attr-defined]
    run_state_machine_as_test(machine, settings=FEW)


def test_a_real_engine_is_asked_and_broken_step_by_step(world: RealWorld) -> None:
    class Machine(PlanMachine):
        most_ranks = 2
        kinds = ("delay", "kill", "close", "drop")

    Machine.world = world
    few = settings(FEW, max_examples=3, stateful_step_count=3, phases=[Phase.generate])
    run_state_machine_as_test(Machine, settings=few)


def test_a_real_engine_that_loses_its_first_request_fails_a_step(world: RealWorld) -> None:
    class Machine(PlanMachine):
        relay = "unsynchronised"
        kinds = ("hold", "delay")

    Machine.world = world
    with pytest.raises(StepFailedError, match=r"wedged \(proved\)"):
        run_state_machine_as_test(Machine, settings=settings(FEW, max_examples=40, phases=[Phase.generate]))
