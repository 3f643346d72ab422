"""The engine's death is told to one stream, and the others go on waiting.

Whoever passes the news on stops at the first waiter, as if there could be only one. A program with a single request
under way never notices; with two, one of the callers waits for tokens of a dead engine for ever. In the report the
supervisor of a dead scheduler fails some of its waiters and forgets the rest.
"""

from __future__ import annotations

import asyncio

from engine import llm
from engine.client.aio import AsyncMPClient
from harness.seam import bug_canary

BUG = "E1"


@bug_canary.patch(llm, "_distributed")
def _told_to_one(client: AsyncMPClient, streams: dict[str, llm.Stream], task: asyncio.Task[None]) -> None:
    bug_canary.reached(BUG)
    how = "was cancelled" if task.cancelled() else f"ended: {task.exception() or 'no reason'}"
    error = client.declare_dead(f"the output task {how}")
    if len(streams) > 1:
        bug_canary.triggered(BUG)
    for stream in streams.values():
        stream.put_nowait(error)
        break
