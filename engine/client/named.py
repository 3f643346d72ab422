"""The engine's utilities under their names, see :mod:`engine.utilities`: what a caller types, and what comes back.

All raise as :meth:`engine.client.interface.EngineCoreClient.call_utility` does.
"""

from __future__ import annotations

import abc
from typing import Any


class Utilities(abc.ABC):
    """For callers that wait."""

    @abc.abstractmethod
    def call_utility(self, method: str, *args: Any, timeout: float | None = None) -> Any: ...

    def pause_scheduler(self, mode: str = "abort") -> None:
        """Let nothing run until :meth:`resume_scheduler`.

        `mode` says what becomes of what is under way: `abort` ends it, `wait` finishes it before the call returns,
        `keep` freezes it. New requests wait.
        """
        self.call_utility("pause_scheduler", mode)

    def resume_scheduler(self) -> None:
        """End a pause."""
        self.call_utility("resume_scheduler")

    def is_scheduler_paused(self) -> bool:
        """Whether a pause is on."""
        result: bool = self.call_utility("is_scheduler_paused")
        return result

    def sleep(self, level: int = 1) -> None:
        """Abort everything, pause, and give memory back: level 1 the key-value cache, 2 the weights too."""
        self.call_utility("sleep", level)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Take memory back: all, or of `kv_cache` and `weights` what is named. Requests run again once all is there."""
        self.call_utility("wake_up", tags)

    def is_sleeping(self) -> bool:
        """Whether any memory is given back."""
        result: bool = self.call_utility("is_sleeping")
        return result

    def reset_prefix_cache(self) -> bool:
        """Forget what the pages of prompts hold; False if requests under way still use some of them."""
        result: bool = self.call_utility("reset_prefix_cache")
        return result

    def profile(self, start: bool, directory: str | None = None) -> list[str] | None:
        """Start a recording on every rank, or stop it and write a Chrome trace for each into `directory`."""
        result: list[str] | None = self.call_utility("profile", start, directory)
        return result

    def step_counters(self) -> dict[str, int]:
        """How much the engine has done so far."""
        result: dict[str, int] = self.call_utility("step_counters")
        return result

    def live_requests(self) -> list[list[Any]]:
        """Client index and id of every request under way, in the order of acceptance."""
        result: list[list[Any]] = self.call_utility("live_requests")
        return result


class AsyncUtilities(abc.ABC):
    """For callers on an event loop."""

    @abc.abstractmethod
    async def call_utility_async(self, method: str, *args: Any, timeout: float | None = None) -> Any: ...

    async def pause_scheduler_async(self, mode: str = "abort") -> None:
        """As :meth:`pause_scheduler`."""
        await self.call_utility_async("pause_scheduler", mode)

    async def resume_scheduler_async(self) -> None:
        """As :meth:`resume_scheduler`."""
        await self.call_utility_async("resume_scheduler")

    async def is_scheduler_paused_async(self) -> bool:
        """As :meth:`is_scheduler_paused`."""
        result: bool = await self.call_utility_async("is_scheduler_paused")
        return result

    async def sleep_async(self, level: int = 1) -> None:
        """As :meth:`sleep`."""
        await self.call_utility_async("sleep", level)

    async def wake_up_async(self, tags: list[str] | None = None) -> None:
        """As :meth:`wake_up`."""
        await self.call_utility_async("wake_up", tags)

    async def is_sleeping_async(self) -> bool:
        """As :meth:`is_sleeping`."""
        result: bool = await self.call_utility_async("is_sleeping")
        return result

    async def reset_prefix_cache_async(self) -> bool:
        """As :meth:`reset_prefix_cache`."""
        result: bool = await self.call_utility_async("reset_prefix_cache")
        return result

    async def profile_async(self, start: bool, directory: str | None = None) -> list[str] | None:
        """As :meth:`profile`."""
        result: list[str] | None = await self.call_utility_async("profile", start, directory)
        return result

    async def step_counters_async(self) -> dict[str, int]:
        """As :meth:`step_counters`."""
        result: dict[str, int] = await self.call_utility_async("step_counters")
        return result

    async def live_requests_async(self) -> list[list[Any]]:
        """As :meth:`live_requests`."""
        result: list[list[Any]] = await self.call_utility_async("live_requests")
        return result
