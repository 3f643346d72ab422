"""What every rank's scheduler and page pool hold, and the client's tables."""

from __future__ import annotations

from typing import Any

from engine.workers import WORKER_METHODS
from tests.invariants.callers import Caller, until

PAGES = 512


def nothing(pages: int = PAGES) -> dict[str, int]:
    """What the books of a rank say while nothing is under way."""
    return {"live": 0, "waiting": 0, "running": 0, "free": pages, "promised": 0}


def with_books(role: str) -> None:
    """In every rank: a worker method that tells what is under way there, and what that holds."""

    def books(core: Any) -> dict[str, int]:
        scheduler = core.scheduler
        return {
            "live": len(scheduler.live()),
            "waiting": scheduler.waiting,
            "running": scheduler.running,
            "free": scheduler.pages.free,
            "promised": scheduler.pages._promised,
        }

    WORKER_METHODS.register(books)


def require_nothing_left(caller: Caller) -> None:
    """Nothing is under way, neither in any rank nor in the client."""
    assert caller.call("live_requests") == []
    assert caller.call("collective_rpc", "books") == [nothing()] * len(caller.factory.processes)
    counted = caller.call("step_counters")
    assert counted["accepted"] == counted["finished"] + counted["aborted"]
    assert caller.client._resources.owed == set()
    until(lambda: len(caller.client._resources.calls) == 0, "no call is open")
