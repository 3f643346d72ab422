"""Far more at once than the engine can run: nothing is lost, memory is bounded, and a refusal says what it is."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from engine.codec import Array
from engine.config import Timeouts
from engine.llm import AsyncLLM
from engine.messages import ErrorKind, FinishReason, RequestOutput, SamplingParams
from engine.model import reference
from tests.engine.forks import ForkFactory, config_for

SAFE = ("handshake", "subscribed", "pushpull")
PATIENT = Timeouts(startup=5.0, handshake=2.0, step=30.0, stall=10.0, shutdown=2.0)
FLOOD = 10_000
PADDING = [200] * 1000
"""Stop tokens of two bytes each: they make a request 2 kB on the wire."""


async def last(llm: AsyncLLM, prompt: list[int] | Array, params: SamplingParams) -> RequestOutput:
    outputs = [output async for output in llm.generate(prompt, params)]
    return outputs[-1]


def peak_memory(pid: int) -> int:
    """The most memory that a process has ever had, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) * 1024


@pytest.mark.parametrize(
    "relay", ["pushpull", *(pytest.param(other, marks=pytest.mark.nightly) for other in ("handshake", "subscribed"))]
)
def test_ten_thousand_requests_at_once_are_all_answered(relay: str, factory: ForkFactory) -> None:
    config = config_for(2, relay=relay, timeouts=PATIENT, max_num_seqs=256, max_waiting=FLOOD)

    async def run() -> None:
        async with AsyncLLM(config, factory) as llm:
            pid = factory.processes["dp0.rank0"].pid
            before = peak_memory(pid)
            params = SamplingParams(1, stop_token_ids=PADDING)
            answers = await asyncio.gather(*(last(llm, [n % 384], params) for n in range(FLOOD)))
            grown = peak_memory(pid) - before
        golden = [reference.greedy("tiny", [token], 1) for token in range(384)]
        assert [answer.token_ids for answer in answers] == [golden[n % 384] for n in range(FLOOD)]
        # 20 MB of messages, their records, and no more than that a few times over.
        assert grown < 300_000_000, f"rank 0 grew by {grown / 1e6:.0f} MB"

    asyncio.run(run())


def test_what_is_beyond_the_waiting_room_is_refused_as_busy_and_the_rest_is_served(factory: ForkFactory) -> None:
    async def run() -> None:
        async with AsyncLLM(config_for(2, timeouts=PATIENT, max_waiting=100), factory) as llm:
            answers = await asyncio.gather(*(last(llm, [n % 384], SamplingParams(1)) for n in range(FLOOD)))
            told = Counter((answer.finish_reason, answer.error_kind) for answer in answers)
            assert told == {(FinishReason.LENGTH, None): 116, (FinishReason.ERROR, ErrorKind.BUSY): FLOOD - 116}
            assert all("try again later" in (answer.error or "") for answer in answers if answer.error_kind)
            assert (await last(llm, [7], SamplingParams(1))).token_ids == reference.greedy("tiny", [7], 1)

    asyncio.run(run())


@pytest.mark.parametrize("relay", SAFE)
@pytest.mark.parametrize("size", [2, 3])
def test_a_request_of_16_mib_reaches_every_rank_and_only_itself_is_refused(
    relay: str, size: int, factory: ForkFactory
) -> None:
    async def run() -> None:
        async with AsyncLLM(config_for(size, relay=relay, timeouts=PATIENT), factory) as llm:
            huge = Array("float64", (1, 2**21), bytes(16 * 2**20))
            stream = llm.generate([1, 2], SamplingParams(6))
            tokens = (await anext(stream)).token_ids
            answer = await last(llm, huge, SamplingParams(1))
            assert (answer.finish_reason, answer.error_kind) == (FinishReason.ERROR, ErrorKind.INVALID)
            async for output in stream:
                tokens = tokens + output.token_ids
            assert tokens == reference.greedy("tiny", [1, 2], 6)

    asyncio.run(run())
