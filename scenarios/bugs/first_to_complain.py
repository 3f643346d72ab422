"""The rank that complains first is taken for the one that failed.

A rank that was killed says nothing; its peer sees a lost connection and reports that. The launcher waits for somebody
to say why the engine fails, and names whoever says it. The exits, which tell the truth, are looked at only when nobody
has anything to say. In the report the failing rank's own reply is never read, and an innocent one's is.
"""

from __future__ import annotations

from engine import death, monitor
from engine.clock import Deadline
from engine.death import Death
from engine.launch import Ranks
from harness.seam import bug_canary

BUG = "E3"


@bug_canary.patch(monitor, "settle")
def _settle(ranks: Ranks) -> Death:
    bug_canary.reached(BUG)
    deadline = Deadline.after(death.SETTLE)
    while ranks.living() and not any(rank.failed for rank in ranks.all) and not deadline.expired():
        ranks.wait(deadline)
    right = death.judge(ranks.all)
    for rank in ranks.all:
        if rank.failed is not None:
            if rank.role != right.culprit:
                bug_canary.triggered(BUG)
            return Death(rank.role, rank.failed.cause, rank.exitcode, rank.phase)
    return right
