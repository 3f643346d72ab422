"""The task that hands out the outputs holds the engine that it belongs to, so the engine is never let go.

The task lives as long as the engine, and the engine as long as the task: a program that drops its last reference
without a shutdown keeps the client and every process of it. The receiver of the client that this engine follows has a
contract against just that.
"""

from __future__ import annotations

import asyncio

from engine import llm
from harness.seam import bug_canary

BUG = "E4"


@bug_canary.patch(llm.AsyncLLM, "_ensure_task")
def _ensure_task(self: llm.AsyncLLM) -> None:
    if self._task is not None:
        return
    bug_canary.reached(BUG)

    def over(task: asyncio.Task[None]) -> None:
        if task.cancelled():  # by the end of the event loop: the engine was still there
            bug_canary.triggered(BUG)
        llm._distributed(self.client, self._streams, task)

    coroutine = llm._distribute(self.client, self._streams)
    self._task = asyncio.get_running_loop().create_task(coroutine, name="engine-outputs")
    self._task.add_done_callback(over)
