"""Whether an engine serves: one request through each kind of client, on real processes.

``python -m tests.invariants.healthy`` says so and exits with 0; under a change it runs in a process of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from engine.client.aio import AsyncMPClient
from engine.client.sync import SyncMPClient
from engine.messages import Outputs, Request, SamplingParams
from engine.model import reference
from tests.engine.forks import ForkFactory, config_for

LIMIT = 30.0
"""Seconds for all of it."""

PROMPT = [5, 6, 7]
TOKENS = 4
_ANSWER_LIMIT = 10.0


class NotServedError(Exception):
    """The answer was another one than the reference's."""


def serve(then: Callable[[], None]) -> None:
    """Has the request answered and calls `then`, before any shutdown: that may be what a change has broken."""
    factories = [ForkFactory(), ForkFactory()]
    try:
        with_loop = AsyncMPClient(config_for(2), factories[0])
        _check("asyncio", asyncio.run(asyncio.wait_for(_answer(with_loop), _ANSWER_LIMIT)))
        plain = SyncMPClient(config_for(2), factories[1])
        _check("plain", _plain_answer(plain))
        then()
        with_loop.shutdown()
        plain.shutdown()
    finally:
        for factory in factories:
            factory.kill()


def _check(client: str, got: list[int]) -> None:
    wanted = reference.greedy("tiny", PROMPT, TOKENS)
    if got != wanted:
        raise NotServedError(f"the {client} client was given {got}, expected {wanted}")


async def _answer(client: AsyncMPClient) -> list[int]:
    await client.add_request_async(Request("healthy", PROMPT, SamplingParams(TOKENS)))
    tokens: list[int] = []
    while not _over(await client.get_output_async(), tokens):
        pass
    return tokens


def _plain_answer(client: SyncMPClient) -> list[int]:
    client.add_request(Request("healthy", PROMPT, SamplingParams(TOKENS)))
    tokens: list[int] = []
    while not _over(client.get_output(_ANSWER_LIMIT), tokens):
        pass
    return tokens


def _over(batch: Outputs, tokens: list[int]) -> bool:
    """Adds the tokens in that batch; whether the request is finished with it."""
    for output in batch.outputs:
        tokens += output.token_ids
    return any(output.finish_reason is not None for output in batch.outputs)


if __name__ == "__main__":
    serve(lambda: print("served"))
