"""A plugin for plans in tests: a client that asks for no abort when a stream is left, as many have been reported."""

from __future__ import annotations

import multiprocessing

from engine.client.aio import AsyncMPClient


async def _forgets(self: AsyncMPClient, request_ids: list[str]) -> None:
    """What was left runs on to its last token."""


if multiprocessing.current_process().name == "client":
    AsyncMPClient.abort_requests_async = _forgets  # type: ignore[method-assign]
