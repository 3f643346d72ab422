"""The benchmark of shrinking pads plans as it says, and sees everything that is left too much."""

from __future__ import annotations

import pytest
from msgspec import structs

from harness import scenario
from harness.bench import shrink
from harness.faults import Delay
from harness.instant import Instant
from harness.plan import Plan, Request, Topology, check
from harness.targets import get


@pytest.mark.parametrize("wanted", shrink.BUGS)
def test_a_padded_plan_has_six_faults_and_nine_settings_more(wanted: str) -> None:
    bug = scenario.bug(wanted)
    least = shrink._plan_of(bug)
    big = shrink.padded(bug, least)
    check(big)
    get(big.target).check(big)
    assert len(big.faults) == shrink.FAULTS
    more = len(big.workload.requests) - len(least.workload.requests)
    settings = len(big.engine.config) - len(least.engine.config) + more
    assert settings + (big.observe != least.observe) + (big.seed != least.seed) == shrink.SETTINGS
    assert shrink.too_much(least, least) == ""


def test_everything_that_is_left_too_much_is_told() -> None:
    least = Plan(faults=())
    big = structs.replace(
        least,
        topology=Topology(tp=3),
        faults=(Delay(at=Instant("client", "start"), seconds=0.1),),
        workload=structs.replace(least.workload, requests=(*least.workload.requests, Request(prompt=(1,)))),
        engine=structs.replace(least.engine, config={"page_size": 8}),
        observe=("relay",),
        seed=3,
    )
    assert shrink.too_much(big, least) == "1 faults, 1 requests, 1 ranks, a delay, page_size, observe, seed"
    assert shrink.too_much(least, big) == "observe, seed"
