"""Tokens are those of the one-process reference for every mix of requests, chunk, page size and number of ranks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.codec import Array
from engine.config import EngineConfig
from engine.errors import EngineDeadError
from engine.llm import AsyncLLM
from engine.messages import FinishReason, Request, RequestOutput, SamplingParams
from engine.model import reference
from engine.model.llama import Llama
from engine.pages import PagePool, PageTable
from tests.engine.forks import ForkFactory, config_for, replace
from tests.engine.inline import Inline, whole_model

LONGEST = 10
PROMPTS = (
    [7],
    list(b"hello"),
    [0, 383, 256, 1],
    list(range(40, 57)),
    list(range(100, 141)),
    [5] * 64,
    [*range(100, 130), 1, 2],  # begins as one before, so that its first pages are shared
)
GREEDY = SamplingParams(LONGEST)
DRAWS = (GREEDY, GREEDY, SamplingParams(LONGEST, 1.5, seed=7), SamplingParams(LONGEST, 0.8, 20, 0.9, seed=2**64 - 1))


@dataclass(frozen=True)
class Job:
    """One request of a mix: which prompt, how many tokens, how drawn, as embeddings or ids, and when it is disturbed.

    `after` is how many steps (or milliseconds) the asker waits before it; it aborts after `abort` tokens, if that comes
    before the end.
    """

    prompt: int
    count: int
    draw: int
    embeds: str
    after: int
    abort: int

    @property
    def params(self) -> SamplingParams:
        whole = DRAWS[self.draw]
        return SamplingParams(self.count, whole.temperature, whole.top_k, whole.top_p, whole.seed)

    @property
    def expected(self) -> list[int]:
        return answers(self.prompt, self.draw)[: self.count]

    @property
    def embedded(self) -> Array | None:
        return as_embeds(PROMPTS[self.prompt], self.embeds) if self.embeds else None

    def request(self, name: str) -> Request:
        ids = [] if self.embeds else PROMPTS[self.prompt]
        return Request(name, ids, self.params, self.embedded)

    def check(self, outputs: Sequence[RequestOutput]) -> None:
        """All tokens, or a beginning of them if it was aborted."""
        tokens = [token for output in outputs for token in output.token_ids]
        reasons = [output.finish_reason for output in outputs]
        assert reasons[:-1] == [None] * (len(reasons) - 1)
        if reasons[-1] is FinishReason.ABORT and self.abort < self.count:
            assert tokens == self.expected[: len(tokens)]
        else:
            assert (tokens, reasons[-1]) == (self.expected, FinishReason.LENGTH)


@cache
def answers(prompt: int, draw: int) -> list[int]:
    params = DRAWS[draw]
    return reference.generate("tiny", reference.embedded("tiny", PROMPTS[prompt]), params, params.seed or 0)


def as_embeds(prompt: Sequence[int], dtype: str = "float64") -> Array:
    """The rows of the embedding table. Only float64 is exact for the tiny model."""
    return Array.of(reference.embedded("tiny", prompt).to(getattr(torch, dtype)))


JOBS = st.builds(
    Job,
    prompt=st.integers(0, len(PROMPTS) - 1),
    count=st.integers(1, LONGEST),
    draw=st.integers(0, len(DRAWS) - 1),
    embeds=st.sampled_from(["", "", "float64"]),
    after=st.integers(0, 4),
    abort=st.sampled_from([0, 1, 3, LONGEST, LONGEST]),
)
MIXES = st.lists(JOBS, min_size=1, max_size=6)
SHAPES = st.fixed_dictionaries(
    {
        "max_batched_tokens": st.sampled_from([1, 2, 3, 5, 8, 17, 64, 256]),
        "page_size": st.sampled_from([1, 2, 3, 7, 16, 64]),
        "max_num_seqs": st.integers(1, 6),
        "spare": st.integers(0, 40),
    }
)


def shape(spare: int, page_size: int, **changes: int) -> dict[str, Any]:
    """Configuration with just enough pages for the longest request, and a few to spare."""
    longest = max(len(prompt) for prompt in PROMPTS) + LONGEST
    return {"page_size": page_size, "num_pages": -(-longest // page_size) + spare, **changes}


@pytest.fixture(scope="module")
def model() -> Llama:
    return whole_model()


@pytest.mark.timeout(400)  # enough to make a failing example small
@settings(max_examples=30)
@given(mix=MIXES, changes=SHAPES)
def test_tokens_equal_the_reference_in_one_process(model: Llama, mix: list[Job], changes: dict[str, int]) -> None:
    inline = Inline(model, **shape(**changes))
    for index, job in enumerate(mix):
        for _ in range(job.after):
            step_and_abort(inline, mix)
        inline.add(job.request(str(index)))
        if job.abort == 0:
            inline.abort(str(index))
    step_and_abort(inline, mix)
    while inline.core.has_work():
        step_and_abort(inline, mix)
    inline.step()  # takes in what is left of aborts
    for index, job in enumerate(mix):
        job.check(inline.outputs[str(index)])
    assert inline.core.scheduler.pages.free == inline.config.num_pages


def step_and_abort(inline: Inline, mix: list[Job]) -> None:
    for output in inline.step():
        if len(inline.tokens(output.request_id)) == mix[int(output.request_id)].abort:
            inline.abort(output.request_id)


async def ask(llm: AsyncLLM, name: str, job: Job) -> list[RequestOutput]:
    outputs = []
    if job.abort == 0:
        asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(llm.abort(name)))
    async for output in llm.generate(job.embedded or PROMPTS[job.prompt], job.params, name):
        outputs.append(output)
        if len(outputs) == job.abort and output.finish_reason is None:
            await llm.abort(name)
    return outputs


def serve_mix(size: int, mix: list[Job], changes: dict[str, int]) -> None:
    """One engine of forked ranks that compare their digests in every step, one mix of requests."""
    factory = ForkFactory()
    # Nothing here is about time, so a machine that is busy elsewhere gets all it may need.
    config = EngineConfig(tp_size=size, digest_interval=1, **shape(**changes))

    async def run() -> list[list[RequestOutput]]:
        async with AsyncLLM(config, factory) as llm:
            tasks = []
            for index, job in enumerate(mix):
                await asyncio.sleep(job.after / 1000)
                tasks.append(asyncio.create_task(ask(llm, str(index), job)))
            return await asyncio.gather(*tasks)

    try:
        for job, outputs in zip(mix, asyncio.run(asyncio.wait_for(run(), 60)), strict=True):
            job.check(outputs)
        assert factory.living() == []
    finally:
        factory.kill()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_tokens_equal_the_reference_over_real_ranks(size: int) -> None:
    @settings(max_examples=5)
    @given(mix=MIXES, changes=SHAPES)
    def check(mix: list[Job], changes: dict[str, int]) -> None:
        serve_mix(size, mix, changes)

    check()


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@settings(max_examples=400)
@given(size=st.sampled_from([1, 2, 3, 4, 6]), mix=MIXES, changes=SHAPES)
def test_tokens_equal_the_reference_over_real_ranks_all_night(
    size: int, mix: list[Job], changes: dict[str, int]
) -> None:
    serve_mix(size, mix, changes)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_embeddings_are_taken_as_they_are(model: Llama, dtype: str) -> None:
    rows = reference.embedded("tiny", PROMPTS[3]).to(getattr(torch, dtype))
    inline = Inline(model, max_batched_tokens=6)
    inline.add(Request("a", [], GREEDY, Array.of(rows)))
    inline.drain()
    assert inline.tokens("a") == reference.generate("tiny", rows.double(), GREEDY)


def test_embeddings_that_are_no_token_s_are_served_by_every_number_of_ranks() -> None:
    rows = np.random.default_rng(5).normal(size=(9, 96))
    prompt = Array.of(rows)
    expected = reference.generate("tiny", torch.from_numpy(rows), GREEDY)

    async def tokens(size: int) -> list[int]:
        async with AsyncLLM(config_for(size, max_batched_tokens=4), ForkFactory()) as llm:
            return [token async for output in llm.generate(prompt, GREEDY) for token in output.token_ids]

    for size in (1, 2, 3):
        assert asyncio.run(asyncio.wait_for(tokens(size), 20)) == expected


def test_logprobs_come_from_real_ranks_as_well(factory: ForkFactory) -> None:
    async def run() -> list[RequestOutput]:
        async with AsyncLLM(config_for(3), factory) as llm:
            return [output async for output in llm.generate(PROMPTS[1], SamplingParams(2, logprobs=2))]

    first = asyncio.run(run())[0].logprobs
    logs = reference.logits("tiny", reference.embedded("tiny", PROMPTS[1])).log_softmax(-1)
    assert first is not None
    assert first[0].logprob == pytest.approx(float(logs.max()))
    assert [value for _, value in first[0].top] == pytest.approx(logs.topk(2).values.tolist())


def test_nothing_is_drawn_before_a_prompt_is_complete(model: Llama) -> None:
    inline = Inline(model, max_batched_tokens=10)
    inline.add(Request("a", PROMPTS[5], GREEDY))
    assert [inline.step() for _ in range(6)] == [[]] * 6
    assert len(inline.step()) == 1


def test_a_leak_in_a_rank_ends_the_engine_with_that_rank_as_the_cause() -> None:
    def before(role: str) -> None:
        if role == "dp0.rank1":
            whole = PagePool.release

            def release(self: PagePool, table: PageTable) -> None:
                table.pages.pop()
                table.limit -= 1
                whole(self, table)

            replace(PagePool, "release", release)

    leaking = ForkFactory(before)

    async def run() -> EngineDeadError:
        async with AsyncLLM(config_for(2, digest_interval=16), leaking) as llm:
            # The rank that leaks may be found out only after rank 0 has sent the last token.
            first = [output async for output in llm.generate([1, 2], SamplingParams(2))]
            with pytest.raises(EngineDeadError) as caught:
                await anext(llm.generate([1, 2], SamplingParams(2)))
            assert len(first) == 2
            return caught.value

    error = asyncio.run(asyncio.wait_for(run(), 20))
    assert error.culprit == "dp0.rank1"
    assert "PageError: the 512 pages do not add up: 1 owned by nobody (0)" in error.cause
    assert leaking.living() == []


def test_the_cache_of_the_small_model_stays_small(model: Llama) -> None:
    config = EngineConfig()
    buffer = model.new_cache(config.num_pages, config.page_size).buffer
    assert buffer.shape == (2, 2, config.num_pages, config.page_size, 12, 8)
    assert buffer.nbytes < 30e6
