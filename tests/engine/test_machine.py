"""Whatever is done to a client in whatever order ends as a model of it says, for thousands of rules."""

from __future__ import annotations

import contextlib
import gc
import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import zmq
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.engine.machine import RULES, LoopMachine, Machine, ThreadMachine


@contextlib.contextmanager
def still() -> Iterator[None]:
    """What is there before stays out of the collections of garbage, and what comes once is there."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as push, context.socket(zmq.PULL) as pull:
        push.bind("inproc://once")
        pull.connect("inproc://once")
        push.send(b"x" * 100_000, copy=False, track=True)
        pull.recv()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def run(machine: type[Machine], wanted: int, chosen: int) -> int:
    """Run batches of examples, chosen by that seed, until so many rules have run, and each of them; how many ran."""
    counted: Any = type(machine.__name__, (machine,), {"ran": Counter()})
    ran: Counter[str] = counted.ran
    missing = rules = set[str]().union(*(RULES.get(each.__name__, set()) for each in machine.__mro__))
    seeds = random.Random(chosen)
    print(f"{machine.__name__}, {SEED}={chosen}")
    with still():
        while ran.total() < wanted or missing:
            assert ran.total() < 4 * wanted, f"never ran: {missing}"
            run_state_machine_as_test(seed(seeds.getrandbits(64))(counted), settings=SETTINGS)
            missing = rules - set(ran)
    print(f"{ran.total()} rules ran: {dict(ran.most_common())}")
    return ran.total()


SETTINGS = settings(
    max_examples=16,
    stateful_step_count=50,
    deadline=None,
    database=None,
    # A failing run is told as it is: an engine that is started a thousand times more says little more.
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
"""One batch. Hypothesis leaves out some of the rules in each example, so that the others meet more often."""

BOTH = pytest.mark.parametrize(("machine", "wanted"), [(LoopMachine, 1400), (ThreadMachine, 700)])
"""How many rules of each are to run, 2,100 in all."""

SEED = "NOWEDGE_MACHINE_SEED"
"""The variable that says which examples are run; by day they are always the same."""


@BOTH
@pytest.mark.timeout(300)
def test_any_order_of_events_ends_as_the_model_says(machine: type[Machine], wanted: int) -> None:
    assert run(machine, wanted, int(os.environ.get(SEED, "1"))) >= wanted


@BOTH
@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_any_order_of_events_ends_as_the_model_says_all_night(machine: type[Machine], wanted: int) -> None:
    chosen = int(os.environ.get(SEED, random.SystemRandom().getrandbits(32)))
    assert run(machine, 10 * wanted, chosen) >= 10 * wanted
