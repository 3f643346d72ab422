"""Intervals: known values, and that they hold what was seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.statistics import interval, share_interval


@pytest.mark.parametrize(
    ("hits", "runs", "low", "high"),
    [
        (20, 20, 0.8389, 1.0),
        (0, 20, 0.0, 0.1611),
        (10, 20, 0.2993, 0.7007),
        (1, 1, 0.2065, 1.0),
        (81, 263, 0.2553, 0.3662),
    ],
)
def test_the_interval_of_a_share_has_its_known_ends(hits: int, runs: int, low: float, high: float) -> None:
    assert share_interval(hits, runs) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 500).flatmap(lambda runs: st.tuples(st.integers(0, runs), st.just(runs))))
def test_the_interval_holds_what_was_seen_and_narrows_with_more_runs(seen: tuple[int, int]) -> None:
    hits, runs = seen
    low, high = share_interval(hits, runs)
    assert 0 <= low <= hits / runs <= high <= 1
    more_low, more_high = share_interval(10 * hits, 10 * runs)
    assert more_high - more_low < high - low


def test_nothing_has_no_interval() -> None:
    with pytest.raises(ValueError, match="at least one run"):
        share_interval(0, 0)
    with pytest.raises(ValueError, match="at least one value"):
        interval([])
