"""The client shuts the engine down in order, drained, while its requests are under way and others wait for a place."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import AsyncGenerator
from typing import Any

from engine.llm import AsyncLLM
from engine.messages import RequestOutput

AFTER = 6
"""Outputs of all requests together before the shutdown."""

LIMIT = 20.0
"""Seconds that it may take."""

_generate = AsyncLLM.generate
_outputs = 0
_leaving: list[asyncio.Task[None]] = []


async def _generate_and_leave(self: AsyncLLM, *args: Any, **kwargs: Any) -> AsyncGenerator[RequestOutput, None]:
    global _outputs
    async for output in _generate(self, *args, **kwargs):
        _outputs += 1
        if _outputs == AFTER:
            _leaving.append(asyncio.create_task(asyncio.to_thread(self.shutdown, LIMIT, drain=True)))
        yield output


if multiprocessing.current_process().name == "client":
    AsyncLLM.generate = _generate_and_leave  # type: ignore[method-assign]
