"""Rank 1 forgets one page of keys and values whenever a request ends.

The page equation is checked when the engine is idle, and on one rank only it does not hold: that rank leaves while its
peers wait for the next request. Whoever does not hear of it waits for a dead rank.
"""

from __future__ import annotations

import multiprocessing

from engine.pages import PagePool, PageTable

_release = PagePool.release


def _leaking(self: PagePool, table: PageTable) -> None:
    if table.pages:
        table.pages.pop()
        table.limit -= 1
    _release(self, table)


if multiprocessing.current_process().name == "dp0.rank1":
    PagePool.release = _leaking  # type: ignore[method-assign]
