"""Each rank keeps the writing end of its own lifeline, so that the lifeline never ends.

The pipe's end is how a rank learns that its launcher is gone. A child that holds that end itself never sees it: when
the launcher is killed, its ranks stay, with all that they hold. As in the report, and as every fork of a launcher does
that does not close what it has inherited.
"""

from __future__ import annotations

import os
from typing import Any

from engine.lifeline import Lifeline, Reporter
from harness.seam import bug_canary

BUG = "T1"

_init = Lifeline.__init__


@bug_canary.patch(Lifeline, "__init__")
def _init_with_both_ends(self: Lifeline, fd: int, reporter: Reporter, **settings: Any) -> None:
    bug_canary.reached(BUG)
    # Opened by its name, a pipe gives whichever end is asked for; from here on there is one writer too many.
    os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_CLOEXEC)
    bug_canary.triggered(BUG)
    _init(self, fd, reporter, **settings)
