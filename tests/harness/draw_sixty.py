"""Prints the digests of the first sixty plans of a seed, for a test that compares processes."""

from __future__ import annotations

import sys
from itertools import islice

from harness.search.draw import draw
from harness.search.strategies import plans

if __name__ == "__main__":
    print(*(plan.digest for plan in islice(draw(plans(), seed=int(sys.argv[1])), 60)), sep="\n")
