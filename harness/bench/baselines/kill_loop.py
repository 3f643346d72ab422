"""A loop that hurts: start the engine, kill or stop a random process of it at a random time, see whether all ends.

`python -m harness.bench.baselines.kill_loop SEED`.
"""

from __future__ import annotations

import random
import sys

from msgspec import structs

from harness.bench.baselines import BUDGET
from harness.bench.baselines.case import CLIENT, Case, Hit, fails, given
from harness.clock import now, seconds_since

LATEST = 2.0
"""Seconds after the start-up within which a process is hit."""

LONGEST = 1.0
"""Seconds for which a process is stopped."""


def case_of(engine: Case, chance: random.Random) -> Case:
    """A random case of that engine."""
    tp = chance.choice((2, 3))
    hit = Hit(
        victim=chance.choice([CLIENT, *(f"dp0.rank{rank}" for rank in range(tp))]),
        after=chance.uniform(0.0, LATEST),
        stop=chance.choice((None, chance.uniform(0.0, LONGEST))),
    )
    return structs.replace(engine, tp=tp, requests=chance.randint(1, 3), hit=hit)


def main(seed: int) -> int:
    """Loops with that seed; the exit status."""
    began, chance, engine = now(), random.Random(seed), given()
    while seconds_since(began) < BUDGET:
        if fails(case_of(engine, chance)):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
