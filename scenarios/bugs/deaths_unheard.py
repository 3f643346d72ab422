"""The launcher waits for its ranks to be ready, and for nothing else.

Each rank puts a word on a queue when it is ready, and the launcher takes as many words off it as there are ranks,
without a limit. A rank that dies while it loads says nothing: the others find out and leave, and the launcher waits for
ever for ranks that are no more.
"""

from __future__ import annotations

from engine.client import starting
from engine.client.ownership import Ownership
from engine.client.starting import Handshake
from engine.clock import Deadline
from engine.config import Launch
from engine.death import has_failed
from harness.seam import bug_canary

BUG = "S1"


@bug_canary.patch(starting, "_await_ready")
def _await_ready(resources: Ownership, launch: Launch) -> None:
    bug_canary.reached(BUG)
    handshake = Handshake(resources, launch)
    while True:
        handshake.take()
        if handshake.done and all(rank.ready is not None for rank in resources.ranks.all):
            return
        if any(has_failed(rank) for rank in resources.ranks.all):
            bug_canary.triggered(BUG)
        resources.ranks.wait(Deadline.never())
