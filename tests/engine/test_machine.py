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

from tests.engine.machine import RULES, LateLoopMachine, LateThreadMachine, LoopMachine, Machine, ThreadMachine


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


class Run:
    """Examples of one machine, chosen by a seed, and the rules that they ran."""

    def __init__(self, machine: type[Machine], chosen: int) -> None:
        print(f"{machine.__name__}, {SEED}={chosen}")
        self.ran: Counter[str] = Counter()
        self.rules = set[str]().union(*(RULES.get(each.__name__, set()) for each in machine.__mro__))
        self._machine: Any = type(machine.__name__, (machine,), {"ran": self.ran})
        self._seeds = random.Random(chosen)

    def batch(self, examples: int, rules: int) -> None:
        """Run so many examples, of at most that many rules each.

        A failing one is told as it is: an engine that is started a thousand times more says little more.
        """
        how = settings(
            max_examples=examples,
            stateful_step_count=rules,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        run_state_machine_as_test(seed(self._seeds.getrandbits(64))(self._machine), settings=how)

    def until(self, wanted: int) -> int:
        """Run batches until so many rules have run, and each of them; how many ran.

        Hypothesis leaves out some of the rules in each example, so that the others meet more often.
        """
        while self.ran.total() < wanted or self.rules - set(self.ran):
            assert self.ran.total() < 5 * wanted, f"never ran: {self.rules - set(self.ran)}"
            self.batch(16, 50)
        print(f"{self.ran.total()} rules ran: {dict(self.ran.most_common())}")
        return self.ran.total()


SEED = "NOWEDGE_MACHINE_SEED"
"""The variable that says which examples are run; by day they are always the same."""


def by_day() -> int:
    return int(os.environ.get(SEED, "1"))


def by_night() -> int:
    return int(os.environ.get(SEED, random.SystemRandom().getrandbits(32)))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("machine", "wanted"), [(LoopMachine, 1400), (ThreadMachine, 700)])
def test_any_order_of_events_ends_as_the_model_says(machine: type[Machine], wanted: int) -> None:
    with still():
        assert Run(machine, by_day()).until(wanted) >= wanted


@pytest.mark.timeout(300)
@pytest.mark.parametrize("machine", [LateLoopMachine, LateThreadMachine])
def test_an_engine_that_misses_a_deadline_ends_as_the_model_says(machine: type[Machine]) -> None:
    late = Run(machine, by_day())
    with still():
        late.batch(4, 20)
    assert late.ran["start_and_stop_a_rank"] >= 4


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("machine", "wanted"), [(LoopMachine, 14_000), (ThreadMachine, 7_000)])
def test_any_order_of_events_ends_as_the_model_says_all_night(machine: type[Machine], wanted: int) -> None:
    with still():
        assert Run(machine, by_night()).until(wanted) >= wanted


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", [LateLoopMachine, LateThreadMachine])
def test_an_engine_that_misses_a_deadline_ends_as_the_model_says_all_night(machine: type[Machine]) -> None:
    late = Run(machine, by_night())
    with still():
        late.batch(40, 20)
    assert late.ran["start_and_stop_a_rank"] >= 40
