"""Hypothesis with spawned processes and a fixed timeout: `python -m harness.bench.baselines.plain_hypothesis SEED`.

It draws the number of ranks and of requests, how late each rank starts, and whether and when one process is killed. No
example is run twice and none is made smaller: what is asked is the time to the first one that fails.
"""

from __future__ import annotations

import sys

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from msgspec import structs

from harness.bench.baselines import BUDGET, case
from harness.bench.baselines.case import CLIENT, Case, Hit
from harness.clock import now, seconds_since

LONGEST = 1.0
"""Seconds that a rank may start late."""

LATEST = 2.0
"""Seconds after the start-up within which a process is killed."""


class _Over(BaseException):
    """Ends the search; Hypothesis lets it pass."""

    def __init__(self, status: int) -> None:
        self.status = status


@st.composite
def cases(draw: st.DrawFn, engine: Case) -> Case:
    """Cases of that engine."""
    tp = draw(st.integers(2, 3))
    roles = [CLIENT, *(f"dp0.rank{rank}" for rank in range(tp))]
    hits = st.builds(Hit, victim=st.sampled_from(roles), after=st.floats(0.0, LATEST))
    return structs.replace(
        engine,
        tp=tp,
        delays={rank: draw(st.floats(0.0, LONGEST)) for rank in range(tp)},
        requests=draw(st.integers(1, 3)),
        hit=draw(st.none() | hits),
    )


def main(number: int) -> int:
    """Searches with that seed; the exit status."""
    began = now()

    @seed(number)
    @settings(
        max_examples=1_000_000,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(case.given()))
    def holds(drawn: Case) -> None:
        if seconds_since(began) >= BUDGET:
            raise _Over(0)
        if case.fails(drawn):
            raise _Over(1)

    try:
        holds()
    except _Over as over:
        return over.status
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
