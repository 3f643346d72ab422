"""The engine answers what the model says, for every number of ranks and every mix of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache

import pytest
import torch

from engine.llm import AsyncLLM
from engine.messages import FinishReason, RequestOutput, SamplingParams
from engine.model import reference, weights
from engine.model.config import TINY
from tests.engine.forks import ForkFactory, config_for

PROMPTS = {"short": [7], "word": list(b"hello"), "specials": [0, 383, 256, 1], "long": list(range(40, 140))}


@cache
def expected(name: str, count: int) -> list[int]:
    return reference.greedy("tiny", PROMPTS[name], count)


async def collect(llm: AsyncLLM, prompt: list[int], count: int, stop: Sequence[int] = ()) -> list[RequestOutput]:
    return [output async for output in llm.generate(prompt, SamplingParams(count, stop_token_ids=list(stop)))]


def tokens(outputs: list[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_tokens_equal_the_reference_for_every_rank_count_and_batch_mix(size: int, factory: ForkFactory) -> None:
    async def run() -> None:
        async with AsyncLLM(config_for(size, max_num_seqs=3), factory) as llm:
            alone = await collect(llm, PROMPTS["word"], 12)
            assert tokens(alone) == expected("word", 12)
            assert [output.finish_reason for output in alone] == [None] * 11 + [FinishReason.LENGTH]
            # Four requests for three places, started at different steps: prompts and decodes share batches.
            tasks = []
            for name, count in (("long", 6), ("short", 15), ("specials", 9), ("word", 4)):
                tasks.append(asyncio.create_task(collect(llm, PROMPTS[name], count)))
                await asyncio.sleep(0.01)
            results = await asyncio.gather(*tasks)
        assert tokens(results[0]) == expected("long", 6)
        assert tokens(results[1]) == expected("short", 15)
        assert tokens(results[2]) == expected("specials", 9)
        assert tokens(results[3]) == expected("word", 4)

    asyncio.run(run())


def test_a_stop_token_ends_a_request_and_is_told(factory: ForkFactory) -> None:
    stop = expected("word", 12)[4]

    async def run() -> None:
        async with AsyncLLM(config_for(1), factory) as llm:
            outputs = await collect(llm, PROMPTS["word"], 12, [stop])
        assert outputs[-1].finish_reason == FinishReason.STOP
        assert tokens(outputs) == expected("word", 12)[: expected("word", 12).index(stop) + 1]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("prompt", "count", "text"),
    [
        ([], 4, "empty"),
        ([1], 0, "max_tokens"),
        ([1] * 500, 100, "length of 512"),
        ([1, 384], 4, "token 384"),
        ([-1], 4, "token -1"),
    ],
)
def test_a_request_that_cannot_be_served_is_answered(
    prompt: list[int], count: int, text: str, factory: ForkFactory
) -> None:
    async def run() -> None:
        async with AsyncLLM(config_for(1), factory) as llm:
            refused = await collect(llm, prompt, count)
            served = await collect(llm, PROMPTS["short"], 2)
        assert [output.finish_reason for output in refused] == [FinishReason.ERROR]
        assert text in (refused[0].error or "")
        assert tokens(served) == expected("short", 2)

    asyncio.run(run())


def test_shards_are_slices_of_the_full_tensor() -> None:
    for name, shape in weights.shapes(TINY).items():
        whole = weights.full(TINY, name)
        for size in TINY.tp_sizes():
            for dim in range(len(shape)):
                if shape[dim] % size == 0:
                    parts = [weights.shard(TINY, name, dim, rank, size) for rank in range(size)]
                    assert torch.equal(torch.cat(parts, dim), whole)
