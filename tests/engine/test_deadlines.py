"""Deadlines of any length: what the system cannot count in one wait is waited for in several."""

from __future__ import annotations

import asyncio
import select
from typing import Any

import pytest

from engine import clock
from engine.clock import LONGEST_POLL, Deadline
from engine.config import LONGEST, Timeouts
from engine.errors import EngineDeadError
from engine.launch import Ranks
from engine.llm import AsyncLLM
from engine.messages import SamplingParams
from engine.model import reference
from tests.engine.forks import ForkFactory, config_for

PROMPT = [1, 2, 3]


async def tokens_of(llm: AsyncLLM, count: int) -> list[int]:
    return [token async for output in llm.generate(PROMPT, SamplingParams(count)) for token in output.token_ids]


def test_no_wait_is_longer_than_a_poll_can_count() -> None:
    assert Deadline.never().remaining_ms() is None
    assert Deadline.after(0.5).remaining_ms() in range(400, 502)
    readable = select.poll()
    readable.register(1, select.POLLOUT | select.POLLIN)
    for seconds in (LONGEST, 1e10, float("inf")):
        assert Deadline.after(seconds).remaining_ms() == LONGEST_POLL
    readable.poll(LONGEST_POLL)


@pytest.mark.parametrize("size", [1, 2])
def test_waits_that_wake_before_their_deadline_go_on(
    size: int, factory: ForkFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every poll of launcher and ranks ends after 5 ms, also in start-up; all deadlines are ten days away."""
    monkeypatch.setattr(clock, "LONGEST_POLL", 5)
    longest = Timeouts(LONGEST, LONGEST, LONGEST, LONGEST, LONGEST)

    async def run() -> None:
        async with AsyncLLM(config_for(size, timeouts=longest), factory) as llm:
            assert await tokens_of(llm, 3) == reference.greedy("tiny", PROMPT, 3)
            await asyncio.sleep(0.1)
            assert await tokens_of(llm, 3) == reference.greedy("tiny", PROMPT, 3)

    asyncio.run(run())
    assert set(factory.exits()) == {0}


@pytest.mark.parametrize("timeout", [float("inf"), 1e10, 10**400, 0, -1.0, float("-inf")])
def test_a_shutdown_within_any_number_of_seconds_ends_the_engine(timeout: float, factory: ForkFactory) -> None:
    llm = AsyncLLM(config_for(2), factory)
    llm.shutdown(timeout)
    assert factory.living() == []


@pytest.mark.parametrize("timeout", [float("nan"), "5", [1]])
def test_a_shutdown_within_what_is_no_number_is_refused_and_stops_nothing(timeout: Any, factory: ForkFactory) -> None:
    async def run() -> None:
        async with AsyncLLM(config_for(1), factory) as llm:
            with pytest.raises(ValueError, match=r"^timeout: got .*, expected seconds"):
                llm.shutdown(timeout)
            assert await tokens_of(llm, 2) == reference.greedy("tiny", PROMPT, 2)

    asyncio.run(run())


def test_ranks_that_cannot_be_stopped_in_order_are_killed(
    factory: ForkFactory, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(self: Ranks, deadline: Deadline) -> None:
        raise OverflowError("a fault in the stop")

    monkeypatch.setattr(Ranks, "stop", fail)
    llm = AsyncLLM(config_for(2), factory)
    llm.shutdown()
    assert factory.exits() == [-9, -9]
    assert "ERROR client: the ranks could not be stopped in order" in capfd.readouterr().err
    with pytest.raises(EngineDeadError, match="shut down"):
        llm.check_health()
