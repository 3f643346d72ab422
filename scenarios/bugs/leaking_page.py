"""Rank 1 forgets one page of keys and values whenever a request ends.

The page equation is checked when the engine is idle, and on one rank only it does not hold: that rank leaves while its
peers wait for the next request. Whoever does not hear of it waits for a dead rank.
"""

from __future__ import annotations

from engine.pages import PagePool, PageTable
from harness.seam import bug_canary

BUG = "B2"

_release = PagePool.release


@bug_canary.patch(PagePool, "release", role="dp0.rank1")
def _leaking(self: PagePool, table: PageTable) -> None:
    bug_canary.reached(BUG)
    if table.pages:
        bug_canary.triggered(BUG)
        table.pages.pop()
        table.limit -= 1
    _release(self, table)
