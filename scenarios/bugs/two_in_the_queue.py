"""A stream holds two outputs at most, and makes room for the next one by dropping the oldest.

A reader that keeps up never notices. One that is slower than the engine loses tokens in the middle of its answer, and
nothing says so. A ROUTER at its high-water mark does the same, and in the report nobody can see it.
"""

from __future__ import annotations

import contextlib

from engine import llm
from engine.client.aio import AsyncMPClient
from engine.errors import EngineDeadError
from harness.seam import bug_canary

BUG = "B1"

MOST = 2
"""Outputs that a stream holds."""


@bug_canary.patch(llm, "_distribute")
async def _distribute(client: AsyncMPClient, streams: dict[str, llm.Stream]) -> None:
    bug_canary.reached(BUG)
    with contextlib.suppress(EngineDeadError):
        while True:
            batch = await client.get_output_async()
            for output in batch.outputs:
                stream = streams.get(output.request_id)
                if stream is not None:
                    if stream.qsize() == MOST:
                        bug_canary.triggered(BUG)
                        stream.get_nowait()
                    stream.put_nowait(output)
