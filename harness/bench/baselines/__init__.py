"""Baselines: tests of the engine as they are written without the harness, to compare a hunt with.

None has a seam, a proxy, a zygote or an oracle. Each run of the engine is a fresh program with spawned ranks, asks
requests, and is judged by the tokens that it must give and by a fixed timeout:

- `seed_pytest`: the seed report's test, parametrised over three start-up delays.
- `plain_hypothesis`: Hypothesis over ranks, delays, requests, and one process that is killed.
- `kill_loop`: a loop that kills or stops a random process at a random time.

Each is a program that ends with exit status 1 at its first failing case, which it prints.
"""

from __future__ import annotations

STARTUP = 60.0
"""Seconds that a run may take until it is ready, as long as the engine itself gives its start-up by default.

Ranks that import torch, two or three at once, need 3 seconds on an idle machine and 20 on a busy one.
"""

TIMEOUT = 10.0
"""Seconds after which all of a run must have ended, from when it is ready.

A healthy run needs half of that at most. The engine itself notices the death of a rank within a fraction of a second,
and everything else within the second or two of its own deadlines.
"""

BUDGET = 30.0
"""Seconds for which a baseline without an end of its own goes on, counted from the start of its program."""
