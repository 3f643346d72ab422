"""Generated plans: every one can be run, every kind of fault comes up, and the same seed draws the same plans."""

from __future__ import annotations

import subprocess
from itertools import islice

import pytest
from hypothesis import given

from harness.faults import DRAWN, AtInstant, Delay, Hold, Stop, kind_of
from harness.interpreter import python
from harness.plan import Plan, PlanError, check
from harness.search import sites
from harness.search.cover import cover
from harness.search.draw import draw
from harness.search.strategies import DELAY_TOTAL, plans
from harness.targets import get


def fit_to_run(plan: Plan) -> None:
    check(plan)
    get(plan.target).check(plan)


@given(plans())
def test_every_plan_drawn_can_be_run(plan: Plan) -> None:
    fit_to_run(plan)
    assert plan.faults
    assert all(fault.optional for fault in plan.faults)
    assert plan.observe == (("relay",) if plan.topology.tp > 1 else ())


@given(plans(relay="unsynchronised", tp=(2, 4)))
def test_plans_for_a_relay_without_handshake_name_no_handshake_frames(plan: Plan) -> None:
    fit_to_run(plan)
    assert "hello" not in str(plan.faults)
    assert "done" not in str(plan.faults)


@given(plans())
def test_what_only_takes_time_stays_below_the_step_deadline(plan: Plan) -> None:
    pauses = [fault for fault in plan.faults if isinstance(fault, Delay | Stop)]
    later = [fault.cost for fault in pauses if fault.at.site != "start"]
    held = [fault.or_after or 99.0 for fault in plan.faults if isinstance(fault, Hold)]
    assert sum(later) + sum(held) <= DELAY_TOTAL + 1e-9


@given(plans(faults=[], tp=2))
def test_plans_without_faults_can_be_asked_for(plan: Plan) -> None:
    assert plan.faults == ()
    assert plan.topology.tp == 2


@given(plans(faults=["drop", "hold"]))
def test_frame_faults_alone_come_only_with_a_relay(plan: Plan) -> None:
    assert plan.topology.tp > 1
    assert {kind_of(fault) for fault in plan.faults} <= {"drop", "hold"}


def test_a_few_hundred_plans_hold_every_kind_size_and_instant() -> None:
    drawn = list(islice(draw(plans(), seed=1), 400))
    kinds = [kind_of(fault) for plan in drawn for fault in plan.faults]
    assert all(kinds.count(kind) >= 40 for kind in DRAWN)
    assert set(kinds) == set(DRAWN)
    assert {plan.topology.tp for plan in drawn} == {1, 2, 3, 4}
    places = {str(fault.at) for plan in drawn for fault in plan.faults if isinstance(fault, AtInstant)}
    wanted = {str(at) for at in sites.instants(2, "pushpull", 1)}
    assert len(wanted & places) >= 0.8 * len(wanted)
    pure = [plan for plan in drawn if len(plan.faults) > 1 and len({kind_of(fault) for fault in plan.faults}) == 1]
    assert pure


def test_plans_drawn_are_distinct_and_depend_on_the_seed_alone() -> None:
    first = [plan.digest for plan in islice(draw(plans(), seed=7), 120)]
    assert len(set(first)) == 120
    assert first == [plan.digest for plan in islice(draw(plans(), seed=7), 120)]
    assert first != [plan.digest for plan in islice(draw(plans(), seed=8), 120)]


def test_another_process_draws_the_same_plans() -> None:
    here = [plan.digest for plan in islice(draw(plans(), seed=3), 60)]
    for _ in range(2):
        done = subprocess.run(python("tests.harness.draw_sixty", "3"), capture_output=True, text=True, check=True)
        assert done.stdout.split() == here


@pytest.mark.parametrize("relay", ["pushpull", "subscribed", "handshake", "unsynchronised"])
def test_the_first_plans_of_a_hunt_hold_every_kind(relay: str) -> None:
    first = list(cover((1, 4), relay))
    for plan in first:
        fit_to_run(plan)
    assert {kind_of(fault) for plan in first for fault in plan.faults} == set(DRAWN)
    assert {plan.topology.tp for plan in first if not plan.faults} == {1, 2, 3, 4}
    for plan in cover((1, 1), relay):
        fit_to_run(plan)


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(PlanError, match=r"tp: 0\.\.5"):
        plans(tp=(0, 5))
    with pytest.raises(PlanError, match="no kind 'explode'"):
        plans(faults=["explode"])
    with pytest.raises(PlanError, match="'corrupt' is for plan files"):
        plans(faults=["corrupt"])
    with pytest.raises(PlanError, match="need a relay"):
        plans(faults=["drop"], tp=1)
