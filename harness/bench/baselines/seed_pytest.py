"""The seed report's test, carried over to this engine: three start-up delays, the first requests at readiness.

Run by pytest, which is given this file's path; the engine comes from the environment (`harness.bench.baselines.case`).
"""

from __future__ import annotations

import pytest
from msgspec import structs

from harness.bench.baselines.case import fails, given


@pytest.mark.parametrize("delays", [{}, {1: 1.0}, {0: 1.0}], ids=["together", "rank1-late", "rank0-late"])
def test_the_first_requests_are_served(delays: dict[int, float]) -> None:
    wrong = fails(structs.replace(given(), tp=2, delays=delays, requests=2))
    if wrong:
        pytest.fail(wrong)
