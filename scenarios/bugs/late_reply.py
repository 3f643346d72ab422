"""A utility call that takes long is made again; the late reply to the first one finds nobody, and ends the receiver.

Mistakes that meet: a client that repeats a call after a short time, a table of calls that takes for granted that every
reply belongs to one of them, and a receiver whose end is told to the calls that wait and latched nowhere. The client is
deaf from then on, and nothing says so. The real client's receiver ends so on any reply with an unknown id.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from engine.client.aio import AsyncMPClient, Attachment
from engine.client.calls import Calls
from engine.errors import UtilityError, UtilityTimeout
from engine.messages import UtilityOutput
from harness.seam import bug_canary

BUG = "U2"

PATIENCE = 0.2
"""Seconds after which a call is made again."""

_call = AsyncMPClient.call_utility_async
_settle = Calls.settle
_receiver_ended = Attachment._receiver_ended


@bug_canary.patch(AsyncMPClient, "call_utility_async")
async def _call_again(self: AsyncMPClient, method: str, *args: Any, timeout: float | None = None) -> Any:
    if timeout is None:
        with contextlib.suppress(UtilityTimeout):
            return await _call(self, method, *args, timeout=PATIENCE)
    return await _call(self, method, *args, timeout=timeout)


@bug_canary.patch(Calls, "settle")
def _settle_known(self: Calls, reply: UtilityOutput) -> bool:
    bug_canary.reached(BUG)
    if reply.call_id not in self._open:
        bug_canary.triggered(BUG)
        raise KeyError(reply.call_id)
    return _settle(self, reply)


@bug_canary.patch(Attachment, "_receiver_ended")
def _tell_the_calls(self: Attachment, task: asyncio.Task[None]) -> None:
    failure = None if task.cancelled() else task.exception()
    if not isinstance(failure, KeyError):
        _receiver_ended(self, task)
        return
    for method, future in self._resources.calls._open.values():
        future.set_exception(UtilityError(method, f"the receiver ended: unknown call {failure}"))
