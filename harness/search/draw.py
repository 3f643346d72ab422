"""Draws plans from a Hypothesis strategy without running anything inside Hypothesis.

A test function that runs real processes and fails by chance is `Flaky` to Hypothesis, and shrinking on noise burns
minutes. So Hypothesis only chooses: running, judging and shrinking happen outside.

Each plan is drawn by a short run of its own. A long run spends five of six examples on mutations of the one before,
which pays where a test function steers it, and here would only be the same plan again with another prompt.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from harness.plan import Plan
from harness.search.drawing import FAR

_BARREN = 30
"""Draws in a row that bring nothing new before a strategy counts as used up."""


def draw(strategy: SearchStrategy[Plan], seed: int) -> Iterator[Plan]:
    """Distinct plans of a strategy, without end unless it has no more; the same ones for the same seed."""
    seen: set[str] = set()
    barren = number = 0
    while barren < _BARREN:
        barren += 1
        for plan in _few(strategy, f"{seed}/{number}"):
            if plan.digest not in seen:
                seen.add(plan.digest)
                barren = 0
                yield plan
        number += 1


def _few(strategy: SearchStrategy[Plan], seed: str) -> list[Plan]:
    """The simplest plan, with which Hypothesis always begins, and one that is chosen at random."""
    drawn: list[Plan] = []

    # The second example has to differ from the first in its first choice; without a choice to spare for that, the
    # number of ranks would never be the least. (For the size of the numbers see `FAR`.)
    @seeded(seed)
    @settings(
        max_examples=2,
        database=None,
        derandomize=False,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(FAR, FAR + 0xFFFF), strategy)
    def collect(spare: int, plan: Plan) -> None:
        drawn.append(plan)

    collect()
    return drawn
