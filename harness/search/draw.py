"""Draws plans from a Hypothesis strategy without running anything inside Hypothesis.

A test function that runs real processes and fails by chance is `Flaky` to Hypothesis, and shrinking on noise burns
minutes. So Hypothesis only chooses: plans are collected in batches, and running, judging and shrinking happen outside.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis.strategies import SearchStrategy

from harness.plan import Plan

BATCH = 50
_BARREN = 3


def draw(strategy: SearchStrategy[Plan], seed: int, batch: int = BATCH) -> Iterator[Plan]:
    """Distinct plans of a strategy, without end unless it has no more; the same ones for the same seed."""
    seen: set[str] = set()
    barren = number = 0
    while barren < _BARREN:
        fresh = [plan for plan in _batch(strategy, f"{seed}/{number}", batch) if plan.digest not in seen]
        number += 1
        barren = 0 if fresh else barren + 1
        for plan in fresh:
            if plan.digest not in seen:
                seen.add(plan.digest)
                yield plan


def _batch(strategy: SearchStrategy[Plan], seed: str, size: int) -> list[Plan]:
    drawn: list[Plan] = []

    @seeded(seed)
    @settings(
        max_examples=size,
        database=None,
        derandomize=False,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(plan: Plan) -> None:
        drawn.append(plan)

    collect()
    return drawn
