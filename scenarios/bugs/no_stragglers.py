"""When one rank has come up, the others get a moment to do so too, and then the start has failed.

The limit was made for ranks that load in step. It begins with whoever comes first, so a rank that is slow by a little,
on a machine on which all the rest is quick, ends an engine in which nothing is wrong and whose start-up has seconds
left. In the report the front gives up on an engine that is about to be ready.
"""

from __future__ import annotations

from engine.clock import Deadline
from engine.errors import StartupError
from engine.launch import START_PHASE, Ranks
from harness.seam import bug_canary

BUG = "S2"

MOMENT = 0.2
"""Seconds."""

_wait = Ranks.wait
_until: dict[int, Deadline] = {}


@bug_canary.patch(Ranks, "wait")
def _wait_a_moment(self: Ranks, deadline: Deadline) -> bool:
    silent = [rank for rank in self.all if rank.phase == START_PHASE]
    if not silent or len(silent) == len(self.all):
        return _wait(self, deadline)
    bug_canary.reached(BUG)
    until = _until.setdefault(id(self), Deadline.after(MOMENT))
    if until.expired():
        bug_canary.triggered(BUG)
        raise StartupError(silent[0].role, "has not come up", exit_code=None, phase=silent[0].phase)
    return _wait(self, deadline.sooner(until))
