"""Each promise is tested or has a reason for not being so, and every listed change can be made in the present tree."""

from __future__ import annotations

from tests.invariants.listing import discover, gaps, mistakes
from tests.invariants.statements import STATEMENTS


def test_each_promise_has_a_test_with_a_change_or_a_reason_for_none() -> None:
    assert list(STATEMENTS) == [f"I{number}" for number in range(1, 45)]
    assert gaps(discover()) == []


def test_each_change_can_be_made_exactly_once_and_compiles() -> None:
    assert mistakes(discover()) == []
