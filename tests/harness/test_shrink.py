"""Shrinking: down to what the failure needs, never by luck, always within its bound, always the same way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from msgspec import structs

from harness import trial
from harness.faults import AbortRace, Close, Delay, Hold, Kill, Lag, Stall, Stop
from harness.history import History
from harness.instant import Instant
from harness.plan import Plan, Request, Topology, Workload, check
from harness.reductions import reductions, steadier
from harness.search.strategies import plans
from harness.shrink import Evidence, Shrinker, Shrunk
from harness.verdict import Verdict
from tests.harness.fake_world import FakeWorld, judge_by, verdict_of, wedge_of

HOLD = Hold(link="relay", frame="join", victim="dp0.rank3", nth=2, or_after=0.17, optional=True)
BIG = Plan(
    topology=Topology(tp=4),
    workload=Workload(
        requests=(Request(prompt=(5, 6, 7), max_tokens=6), Request(prompt=(8,), max_tokens=3, at="previous"))
    ),
    faults=(
        Delay(at=Instant("dp0.rank2", "start"), seconds=0.23, optional=True),
        HOLD,
        Kill(at=Instant("dp0.rank1", "relay.recv", "step", 3), optional=True),
        Delay(at=Instant("dp0.rank0", "relay.send", "step", 2), seconds=0.05, optional=True),
    ),
    observe=("relay",),
)


def holds(plan: Plan) -> bool:
    return any(isinstance(fault, Hold) for fault in plan.faults)


def wedged(verdict: Verdict) -> bool:
    return verdict.verdict == "wedged" and verdict.fingerprint == "w1"


def shrink_by(
    monkeypatch: pytest.MonkeyPatch, rule: Callable[[Plan], bool], **settings: int
) -> tuple[Shrunk, FakeWorld]:
    def judge(history: History) -> Verdict:
        return wedge_of(history.plan) if rule(history.plan) else verdict_of(history.plan)

    monkeypatch.setattr(trial, "judge", judge_by(judge))
    world = FakeWorld()
    return Shrinker(world, wedged, **settings).shrink(BIG), world  # type: ignore[arg-type]


def test_a_plan_shrinks_to_what_its_failure_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    shrunk, _ = shrink_by(monkeypatch, lambda plan: plan.topology.tp > 1 and holds(plan), max_runs=500)
    assert shrunk.plan.topology.tp == 2
    assert shrunk.plan.faults == (Hold(link="relay", frame="join", victim="dp0.rank1", or_after=1.0),)
    assert shrunk.plan.workload.requests == (Request(prompt=(1,), max_tokens=1),)
    assert shrunk.plan.observe == ()


def test_two_faults_that_need_each_other_both_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def rule(plan: Plan) -> bool:
        return holds(plan) and any(isinstance(fault, Kill) for fault in plan.faults)

    shrunk, _ = shrink_by(monkeypatch, rule, max_runs=500)
    assert len(shrunk.plan.faults) == 2


def test_a_failure_that_comes_back_only_now_and_then_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()

    def flaky(plan: Plan) -> bool:
        seen[plan.digest] += 1
        return plan.digest == BIG.digest or seen[plan.digest] == 1

    shrunk, _ = shrink_by(monkeypatch, flaky, max_runs=500)
    assert shrunk.kept == (BIG,)


def test_a_failure_that_needs_luck_is_made_steady_by_longer_times(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: Counter[str] = Counter()

    def racing(plan: Plan) -> bool:
        runs[plan.digest] += 1
        held = [fault.or_after or 0 for fault in plan.faults if isinstance(fault, Hold)]
        return any(seconds >= 0.3 for seconds in held) or (bool(held) and runs[plan.digest] % 2 == 0)

    shrunk, _ = shrink_by(monkeypatch, racing, max_runs=500)
    assert len(shrunk.plan.faults) == 1
    assert isinstance(shrunk.plan.faults[0], Hold)
    assert shrunk.plan.faults[0].or_after == 1.0


def test_a_failure_that_nothing_makes_steady_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    shrunk, world = shrink_by(monkeypatch, lambda plan: False, max_runs=500)
    assert shrunk.kept == ()
    assert len(world.runs) < 30


@pytest.mark.parametrize("bound", [0, 1, 5, 17])
def test_the_number_of_runs_is_bounded(monkeypatch: pytest.MonkeyPatch, bound: int) -> None:
    shrunk, world = shrink_by(monkeypatch, holds, max_runs=bound)
    assert len(world.runs) == shrunk.runs <= bound


def test_the_same_plan_shrinks_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    first, one = shrink_by(monkeypatch, holds)
    second, other = shrink_by(monkeypatch, holds)
    assert first == second
    assert one.runs == other.runs


def test_a_reduction_that_the_target_refuses_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    shrunk, world = shrink_by(monkeypatch, holds, max_runs=500)
    for plan in world.runs:
        check(plan)
    assert shrunk.plan.faults


def test_a_stop_shrinks_in_time_in_roles_and_with_the_ranks() -> None:
    at = Instant("dp0.rank3", "relay.recv", "step", 2)
    stop = Stop(at, 0.37, also=("dp0.rank2", "dp0.rank0"), optional=True)
    plan = Plan(topology=Topology(tp=4), faults=(stop,))
    for smaller in reductions(plan):
        check(smaller)
    stops = [fault for smaller in reductions(plan) for fault in smaller.faults if isinstance(fault, Stop)]
    assert {fault.seconds for fault in stops} == {0.37, 1.0, 0.3, 0.1}
    assert {fault.also for fault in stops} >= {("dp0.rank2",), ("dp0.rank0",)}
    assert {str(fault.at) for fault in stops} >= {"dp0.rank1:relay.recv[step]#2:after", str(at).replace("#2", "#1")}
    assert [fault.seconds for variant in steadier(plan) for fault in variant.faults] == [1.0, 1.0]  # type: ignore[union-attr]


def test_faults_of_a_link_shrink_in_their_number_their_time_and_what_they_are_for() -> None:
    lag = Lag("relay", "step", "dp0.rank1", count=5, seconds=0.37, match="r1", direction="to_connector")
    ends = Instant("dp0.rank0", "output.send")
    plan = Plan(faults=(lag, Stall("relay", "step", "dp0.rank1", 2, ends, 0.37)))
    found = {fault for smaller in reductions(plan) if len(smaller.faults) == 2 for fault in smaller.faults}
    assert {structs.replace(lag, **one) for one in ({"count": 1}, {"seconds": 1.0}, {"match": None})} <= found
    assert structs.replace(lag, direction="either") in found
    assert {
        Stall("relay", "step", "dp0.rank1", 2, None, 0.37),
        Stall("relay", "step", "dp0.rank1", 2, ends, 0.1),
    } <= found
    longer = [fault for variant in steadier(plan) for fault in variant.faults]
    assert structs.replace(lag, seconds=1.0) in longer
    assert Stall("relay", "step", "dp0.rank1", 2, None, 1.0) in longer


@settings(max_examples=25)
@given(plans(tp=(1, 4)))
def test_reductions_differ_from_their_plan_and_come_to_an_end(plan: Plan) -> None:
    steps = 0
    while True:
        smaller = next((one for one in reductions(plan) if one.topology.tp == plan.topology.tp), None)
        if smaller is None:
            break
        assert smaller.digest != plan.digest
        plan, steps = smaller, steps + 1
        assert steps < 100


def test_one_run_that_ends_otherwise_does_not_cost_a_reduction(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine: of each plan one run, another one for each, passes though it should fail."""
    runs: Counter[str] = Counter()

    def noisy(plan: Plan) -> bool:
        runs[plan.digest] += 1
        spoilt = 1 + int(plan.digest, 16) % 5
        return plan.topology.tp > 1 and holds(plan) and runs[plan.digest] != spoilt

    shrunk, _ = shrink_by(monkeypatch, noisy, max_runs=1000)
    assert shrunk.plan.faults == (Hold(link="relay", frame="join", victim="dp0.rank1", or_after=1.0),)
    assert shrunk.plan.workload.requests == (Request(prompt=(1,), max_tokens=1),)
    assert shrunk.plan.topology.tp == 2


@pytest.mark.parametrize(
    ("seen", "decided"),
    [("", None), ("++", None), ("+++", True), ("-", None), ("--", False), ("+-+++", None), ("+-++++", True)],
)
def test_the_sequential_test_decides_as_soon_as_it_can(seen: str, decided: bool | None) -> None:
    evidence = Evidence()
    for sign in seen:
        evidence.saw(sign == "+")
    assert evidence.decided is decided


def test_settings_that_the_failure_does_not_need_go(monkeypatch: pytest.MonkeyPatch) -> None:
    config: dict[str, bool | int | float | str] = {"page_size": 8, "log_stats": True, "prefix_caching": False}
    big = structs.replace(
        BIG,
        seed=7,
        engine=structs.replace(BIG.engine, config=config),
        workload=structs.replace(BIG.workload, utilities=("step_counters", "is_sleeping")),
    )

    def rule(plan: Plan) -> bool:
        return holds(plan) and plan.engine.config.get("page_size") == 8

    monkeypatch.setattr(trial, "judge", judge_by(lambda seen: (wedge_of if rule(seen.plan) else verdict_of)(seen.plan)))
    smallest = Shrinker(FakeWorld(), wedged, max_runs=500).shrink(big).plan
    assert smallest.engine.config == {"page_size": 8}
    assert (smallest.seed, smallest.workload.utilities, smallest.observe) == (0, (), ())


def test_what_does_not_fail_at_first_gets_a_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run of every reduction passes, though it should fail."""
    runs: Counter[str] = Counter()

    def late(plan: Plan) -> bool:
        runs[plan.digest] += 1
        return plan.topology.tp > 1 and holds(plan) and (plan.digest == BIG.digest or runs[plan.digest] > 1)

    shrunk, _ = shrink_by(monkeypatch, late, max_runs=2000)
    assert shrunk.plan.faults == (Hold(link="relay", frame="join", victim="dp0.rank1", or_after=1.0),)
    assert shrunk.plan.topology.tp == 2


def test_requests_go_down_to_those_that_are_needed_and_faults_follow_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests of five are needed; the fault is of the fourth."""
    prompts = [(1,), (2, 2), (3, 3), (4, 4), (5, 5)]
    big = Plan(
        workload=Workload(requests=tuple(Request(prompt=prompt, max_tokens=3) for prompt in prompts)),
        faults=(Close(request=3, after_tokens=1), AbortRace(request=3, when="finish", reuse=1)),
    )

    def rule(plan: Plan) -> bool:
        asked = [request.prompt for request in plan.workload.requests]
        return len(asked) >= 2 and any(isinstance(f, Close) and f.request >= 1 for f in plan.faults)

    monkeypatch.setattr(trial, "judge", judge_by(lambda seen: (wedge_of if rule(seen.plan) else verdict_of)(seen.plan)))
    smallest = Shrinker(FakeWorld(), wedged, max_runs=500).shrink(big).plan
    assert len(smallest.workload.requests) == 2
    assert [fault.request for fault in smallest.faults if isinstance(fault, Close)] == [1]


def test_a_request_that_a_fault_is_done_to_does_not_go() -> None:
    plan = Plan(
        workload=Workload(requests=(Request(prompt=(1,)), Request(prompt=(2,)), Request(prompt=(3,)))),
        faults=(Close(request=1), AbortRace(request=2, when="finish", reuse=0)),
    )
    for smaller in reductions(plan):
        asked = [request.prompt for request in smaller.workload.requests]
        for fault in smaller.faults:
            if isinstance(fault, Close) and len(asked) < 3:
                assert asked[fault.request] == (2,)
            if isinstance(fault, AbortRace) and len(asked) < 3:
                assert asked[fault.request] == (3,)
                assert fault.reuse is None or asked[fault.reuse] == (1,)
