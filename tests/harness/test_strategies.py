"""Generated plans: every one can be run, every kind of fault comes up, and the same seed draws the same plans."""

from __future__ import annotations

import subprocess
from itertools import islice

import pytest
from hypothesis import given
from msgspec import structs

from harness.faults import DRAWN, AtInstant, Delay, Hold, OnFrames, Stop, kind_of
from harness.interpreter import python
from harness.plan import Plan, PlanError, check
from harness.search import sites
from harness.search.cover import cover
from harness.search.draw import draw
from harness.search.drawing import DRAWERS, ON_COLLECTIVES, ON_FRAMES, ON_STREAMS
from harness.search.passage import Passage, learnt, of_table
from harness.search.strategies import DELAY_TOTAL, plans
from harness.targets import get
from harness.world.real import RealWorld


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
    drawn = list(islice(draw(plans(), seed=1), 600))
    kinds = [kind_of(fault) for plan in drawn for fault in plan.faults]
    assert all(kinds.count(kind) >= 12 for kind in DRAWN)
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


@pytest.mark.parametrize("kind", list(DRAWN))
def test_every_plan_that_is_drawn_can_be_run(kind: str) -> None:
    """Also where there are so few places that both instants of a fault would fall on one."""
    few = of_table(2, "pushpull", 2)
    few = structs.replace(few, ranks=tuple(at for at in few.ranks if "all_reduce" in at.site)[:2], learnt=True)
    for plan in islice(draw(plans(tp=2, faults=[kind], passages=lambda ranks, relay, tokens: few), seed=1), 60):
        fit_to_run(plan)


def test_every_kind_that_hunts_draw_has_its_way_to_be_drawn() -> None:
    assert set(DRAWERS) == set(DRAWN)
    assert {*ON_FRAMES, *ON_COLLECTIVES, *ON_STREAMS} < set(DRAWN)


def test_a_place_more_or_less_changes_few_of_the_plans() -> None:
    """Two dry runs may differ in a poll; the same seed must not draw other plans for that."""
    whole = of_table(3, "pushpull", 3)
    more = structs.replace(whole, learnt=True)
    less = structs.replace(more, ranks=more.ranks[:5] + more.ranks[6:])

    def drawn(from_: Passage) -> list[Plan]:
        return list(islice(draw(plans(tp=3, passages=lambda ranks, relay, tokens: from_), seed=5), 200))

    same = sum(one == other for one, other in zip(drawn(more), drawn(less), strict=True))
    assert 190 <= same < 200


def test_places_that_were_learnt_are_where_faults_are_drawn(world: RealWorld) -> None:
    passages = learnt(world, ["pushpull"], [1, 2])
    two = passages(2, "pushpull", 4)
    assert two.learnt
    assert {frame.link for frame in two.frames} == {"relay", "control", "input", "output", "startup"}
    assert {at.site.partition(".")[0] for at in two.ranks} >= {"start", "store", "group", "startup", "tp", "relay"}
    assert {at.site for at in two.client} == {"input.send", "output.recv"}
    assert two == passages(2, "pushpull", 6), "the largest number of tokens that has been learnt"
    assert not passages(3, "pushpull", 1).learnt, "what was not run is from the table"
    drawn = list(islice(draw(plans(tp=2, passages=passages), seed=2), 200))
    for plan in drawn:
        fit_to_run(plan)
    links = {fault.link for plan in drawn for fault in plan.faults if isinstance(fault, OnFrames)}
    assert links == {"relay", "control", "input", "output", "startup"}


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(PlanError, match=r"tp: 0\.\.5"):
        plans(tp=(0, 5))
    with pytest.raises(PlanError, match="no kind 'explode'"):
        plans(faults=["explode"])
    with pytest.raises(PlanError, match="'clock' is for plan files"):
        plans(faults=["clock"])
    with pytest.raises(PlanError, match="need a second rank"):
        plans(faults=["drop"], tp=1)
