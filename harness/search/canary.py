"""The canary: a relay that is known to wedge must be caught before a hunt that finds nothing is believed.

The plans are drawn by the same strategy, run in the same world and judged by the same oracles as those of the hunt;
only the relay differs. A hunt whose canary lives is blind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice

from msgspec import Struct

from harness.clock import now, seconds_since
from harness.plan import Plan
from harness.trial import Trial, trials
from harness.world import World

RELAY = "unsynchronised"
MAX_PLANS = 60


class Canary(Struct, frozen=True):
    """Whether the wedge of the known-bad relay was proved, after how many plans, and in how many seconds."""

    relay: str
    found: bool
    plans: int
    seconds: float


def sing(
    world: World, drawn: Iterator[Plan], seed: int, watch: Callable[[int], None], bound: int = MAX_PLANS
) -> tuple[Canary, Trial | None]:
    """Runs drawn plans until one is proved wedged, ``bound`` at most; returns the proved trial too."""
    began, count = now(), 0
    with closing(trials(world, islice(drawn, bound), seed=seed)) as runs:
        for trial in runs:
            count += 1
            watch(count)
            if trial.verdict.verdict == "wedged" and trial.verdict.grade == "proved":
                return Canary(RELAY, True, count, seconds_since(began)), trial
    return Canary(RELAY, False, count, seconds_since(began)), None
