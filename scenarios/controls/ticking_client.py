"""The client's event loop has timers of its own that come again and again, as heartbeats and metrics do."""

from __future__ import annotations

import asyncio
import multiprocessing
from typing import Any

from engine.llm import AsyncLLM

PERIODS = (0.01, 0.07, 0.5)
"""Seconds between two ticks of each timer."""

_ensure = AsyncLLM._ensure_task


async def _tick(seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)


def _ensure_with_timers(self: AsyncLLM) -> Any:
    if self._task is None:
        loop = asyncio.get_running_loop()
        self._ticks = [loop.create_task(_tick(seconds)) for seconds in PERIODS]  # type: ignore[attr-defined]
    return _ensure(self)


if multiprocessing.current_process().name == "client":
    AsyncLLM._ensure_task = _ensure_with_timers  # type: ignore[method-assign]
