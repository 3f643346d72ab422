"""The error of one request is told to everybody who waits."""

from __future__ import annotations

import contextlib
import multiprocessing

from engine import llm
from engine.client.aio import AsyncMPClient
from engine.errors import EngineDeadError
from engine.messages import FinishReason


async def _to_everybody(client: AsyncMPClient, streams: dict[str, llm.Stream]) -> None:
    with contextlib.suppress(EngineDeadError):
        while True:
            for output in (await client.get_output_async()).outputs:
                for request_id, stream in streams.items():
                    if request_id == output.request_id or output.finish_reason is FinishReason.ERROR:
                        stream.put_nowait(output)


if multiprocessing.current_process().name == "client":
    llm._distribute = _to_everybody
