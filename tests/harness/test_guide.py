"""Guided plans: what is new in a run counts once, and climbs go on from what brought most, next to what is free."""

from __future__ import annotations

import threading
import time
from itertools import islice

from msgspec import structs

from harness.faults import Kill
from harness.history import Event, History
from harness.plan import Plan
from harness.search.draw import draw
from harness.search.guide import CLIMB, Guide
from harness.search.novelty import Novelty
from harness.search.strategies import plans
from harness.trial import Trial
from tests.harness.fake_world import history_of, verdict_of, wedge_of
from tests.harness.synthetic import call, history


def met(*events: Event) -> History:
    return history(events)


def test_an_order_of_two_roles_is_new_once() -> None:
    novelty = Novelty()
    first, second = (
        call(1, "dp0.rank0", "relay.send", "after", "step"),
        call(2, "dp0.rank1", "relay.recv", "after", "step"),
    )
    assert novelty.of(met(first, second)) == 1
    assert novelty.of(met(first, second)) == 0
    assert novelty.of(met(structs.replace(first, t=second.t + 1), second)) == 1, "the other way round"
    assert novelty.of(met(first, structs.replace(second, n=7))) == 0, "how often is left out"
    assert novelty.of(met(first, call(2, "dp0.rank0", "relay.recv"))) == 0, "one role alone meets nobody"
    assert novelty.meetings == 2


def trial_of(plan: Plan, *, fails: bool = False, events: int = 0) -> Trial:
    meeting = [call(n, f"dp0.rank{n % 2}", f"{plan.digest}.{n}") for n in range(events)]
    happened = structs.replace(history_of(plan), events=tuple(meeting))
    return Trial(plan, happened, wedge_of(plan) if fails else verdict_of(plan))


def free_and_guided(climbs: int, count: int, seed: int = 1) -> tuple[list[Plan], list[Plan], Guide]:
    """Runs so many plans, whose novelty is the number of their faults; returns the free ones and those of climbs."""
    strategy = plans()
    free: list[Plan] = []

    def noted() -> object:
        for plan in draw(strategy, seed):
            free.append(plan)
            yield plan

    all_: list[Plan] = []
    with Guide(noted(), strategy, seed, climbs) as guide:  # type: ignore[arg-type]
        for plan in islice(guide, count):
            all_.append(plan)
            guide.tell(trial_of(plan, events=2 * len(plan.faults)))
            if climbs:
                until(lambda: not guide._offered.empty())
    return free, [plan for plan in all_ if plan not in free], guide


def until(true: object) -> None:
    deadline = time.monotonic() + 30
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_without_climbs_all_is_free() -> None:
    free, climbed, _ = free_and_guided(0, 20)
    assert (len(free), climbed) == (20, [])


def test_every_second_plan_is_a_climb_s_and_the_others_are_as_ever() -> None:
    free, climbed, guide = free_and_guided(2, 60)
    assert abs(len(free) - len(climbed)) <= 2
    assert free == list(islice(draw(plans(), 1), len(free)))
    assert not any(thread.name.startswith("climb-") for thread in threading.enumerate())
    assert guide.novelty.meetings > 0


def test_a_climb_ends_in_plans_like_its_best() -> None:
    """What has more faults is more novel here: in its second half a climb has more of them than at random."""
    _, climbed, _ = free_and_guided(1, 8 * CLIMB)
    counts = [len(plan.faults) for plan in climbed]
    free = [len(plan.faults) for plan in islice(draw(plans(), 1), len(counts))]
    assert sum(counts) / len(counts) > sum(free) / len(free)


def test_a_plan_that_fails_ends_its_climb_and_is_not_run_again() -> None:
    strategy = plans(faults=["kill"])
    run: list[Plan] = []
    with Guide(draw(strategy, 1), strategy, 1, climbs=1) as guide:
        for plan in islice(guide, 40):
            run.append(plan)
            guide.tell(trial_of(plan, fails=any(isinstance(fault, Kill) for fault in plan.faults)))
    digests = [plan.digest for plan in run]
    assert len(set(digests)) >= len(digests) - 2
