"""Health is red exactly while a request submitted now could not complete; what does not get on is death in the end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import health
from engine.config import Timeouts
from engine.core import EngineCore
from engine.errors import EngineDeadError, EngineStalledError
from engine.health import Traffic
from engine.llm import AsyncLLM
from engine.messages import RequestOutput, SamplingParams
from engine.model import reference
from engine.parallel.group import TensorGroup
from engine.ports import Port
from engine.pulse import LinkReading, Pulse, PulseTable, Reading
from engine.watchdog import MARGIN, Watchdog
from tests.engine.forks import ForkedProcess, ForkFactory, config_for, replace

QUICK = Timeouts(startup=5.0, handshake=2.0, step=1.0, stall=0.3, shutdown=2.0)
PATIENT = Timeouts(startup=5.0, handshake=2.0, step=30.0, stall=0.3, shutdown=2.0)
PROMPT = [1, 2]


async def tokens_of(llm: AsyncLLM, count: int) -> list[int]:
    return [token async for output in llm.generate(PROMPT, SamplingParams(count)) for token in output.token_ids]


async def until(condition: Callable[[], bool], within: float = 5.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that in time"
        await asyncio.sleep(0.005)


def color(llm: AsyncLLM) -> str:
    """`green`, or the culprit."""
    try:
        llm.check_health()
    except EngineStalledError as stalled:
        return stalled.culprit
    except EngineDeadError as dead:
        return dead.culprit
    return "green"


def cause(llm: AsyncLLM) -> str:
    with pytest.raises(EngineStalledError) as caught:
        llm.check_health()
    return caught.value.cause


async def stop(process: ForkedProcess) -> None:
    """SIGSTOP, and wait until it has worked: the signal is only sent, not obeyed, when the call returns."""
    process.send_signal(signal.SIGSTOP)
    await until(lambda: health.stopped([process.pid]) is not None)


async def dies(awaitable: Awaitable[object]) -> EngineDeadError:
    with pytest.raises(EngineDeadError) as caught:
        await asyncio.wait_for(awaitable, 10.0)
    return caught.value


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_stopped_rank_is_red_at_once_and_green_again_and_an_idle_pause_may_last(
    size: int, factory: ForkFactory
) -> None:
    async def run() -> None:
        async with AsyncLLM(config_for(size, timeouts=QUICK), factory) as llm:
            assert color(llm) == "green"
            last = f"dp0.rank{size - 1}"
            await stop(factory.processes[last])
            assert color(llm) == last
            assert "stopped" in cause(llm)
            for process in factory.processes.values():
                await stop(process)
            # Longer than the step deadline and the watchdog's margin: nothing may hold the pause against the engine.
            await asyncio.sleep(2.0)
            for process in factory.processes.values():
                process.send_signal(signal.SIGCONT)
            await until(lambda: color(llm) == "green")
            assert await tokens_of(llm, 3) == reference.greedy("tiny", PROMPT, 3)

    asyncio.run(run())


@pytest.mark.parametrize(("size", "victim"), [(2, 0), (2, 1), (4, 2)])
def test_a_rank_stopped_in_a_step_is_red_and_heals_with_the_golden_tokens(
    size: int, victim: int, factory: ForkFactory
) -> None:
    async def run() -> None:
        async with AsyncLLM(config_for(size, timeouts=PATIENT), factory) as llm:
            process = factory.processes[f"dp0.rank{victim}"]
            task = asyncio.create_task(tokens_of(llm, 80))
            await until(lambda: llm.client._resources.traffic.received > 5)
            await stop(process)
            assert color(llm) == process.role
            await asyncio.sleep(0.5)
            assert not task.done()
            process.send_signal(signal.SIGCONT)
            await until(lambda: color(llm) == "green")
            assert await task == reference.greedy("tiny", PROMPT, 80)
            assert color(llm) == "green"

    asyncio.run(run())


@pytest.mark.parametrize(("size", "victim"), [(2, 0), (2, 1), (4, 3)])
def test_a_rank_stopped_past_the_deadline_is_named_to_every_caller(
    size: int, victim: int, factory: ForkFactory
) -> None:
    async def run() -> None:
        async with AsyncLLM(config_for(size, timeouts=QUICK), factory) as llm:
            tasks = [asyncio.create_task(tokens_of(llm, 400)) for _ in range(3)]
            await until(lambda: llm.client._resources.traffic.received > 5)
            await stop(factory.processes[f"dp0.rank{victim}"])
            errors = [await dies(task) for task in tasks]
            assert {error.culprit for error in errors} == {f"dp0.rank{victim}"}
            assert color(llm) == f"dp0.rank{victim}"
            assert (await dies(tokens_of(llm, 1))).culprit == f"dp0.rank{victim}"

    asyncio.run(run())


def test_a_rank_stuck_where_its_own_deadline_cannot_look_is_found_by_the_watchdog() -> None:
    def before(role: str) -> None:
        replace(EngineCore, "step", lambda self, raws, late_aborts=None: threading.Event().wait())

    factory = ForkFactory(before)

    async def run() -> None:
        async with AsyncLLM(config_for(1, timeouts=QUICK), factory) as llm:
            task = asyncio.create_task(tokens_of(llm, 1))
            await until(lambda: color(llm) == "dp0.rank0")
            assert "step 1 makes no progress" in cause(llm)
            error = await dies(task)
            assert error.culprit == "dp0.rank0"
            assert "watchdog" in error.cause

    asyncio.run(run())
    assert not factory.living()


def test_slow_is_not_red(tmp_path: Path) -> None:
    """A step that takes three times the stall limit, but gets on all the time."""

    def before(role: str) -> None:
        reduce = TensorGroup.all_reduce

        def slow(self: TensorGroup, tensor: torch.Tensor) -> torch.Tensor:
            time.sleep(0.2)
            return reduce(self, tensor)

        replace(TensorGroup, "all_reduce", slow)

    factory = ForkFactory(before)

    async def run() -> None:
        async with AsyncLLM(config_for(2, timeouts=PATIENT), factory) as llm:
            task = asyncio.create_task(tokens_of(llm, 2))
            colors = set()
            while not task.done():
                colors.add(color(llm))
                await asyncio.sleep(0.02)
            assert colors == {"green"}
            assert await task == reference.greedy("tiny", PROMPT, 2)

    asyncio.run(run())


def test_a_last_request_message_that_is_lost_is_an_error_and_not_silence() -> None:
    def before(role: str) -> None:
        def receive(self: Port) -> None:
            while self.input.poll(0):
                self.input.recv_multipart()

        replace(Port, "receive", receive)

    factory = ForkFactory(before)

    async def run() -> None:
        async with AsyncLLM(config_for(1, timeouts=QUICK), factory) as llm:
            error = await dies(tokens_of(llm, 1))
            assert "message 1 was sent on input and only 0 were taken" in error.cause

    asyncio.run(run())


def test_a_last_output_that_is_lost_is_an_error_and_not_silence() -> None:
    def before(role: str) -> None:
        send = Port.send

        def forget_the_last(self: Port, outputs: list[RequestOutput], *rest: Any, **options: Any) -> None:
            if any(output.finish_reason is not None for output in outputs):
                self.sent += 1
            else:
                send(self, outputs, *rest, **options)

        replace(Port, "send", forget_the_last)

    factory = ForkFactory(before)

    async def run() -> None:
        async with AsyncLLM(config_for(2, timeouts=QUICK), factory) as llm:
            error = await dies(tokens_of(llm, 3))
            assert error.culprit == "dp0.rank0"
            assert error.cause == "sent output 3, and only 2 have arrived"

    asyncio.run(run())


def test_a_program_that_does_not_read_for_longer_than_every_deadline_loses_nothing(factory: ForkFactory) -> None:
    async def run() -> None:
        async with AsyncLLM(config_for(2, timeouts=QUICK), factory) as llm:
            stream = llm.generate(PROMPT, SamplingParams(5))
            tokens = (await anext(stream)).token_ids
            time.sleep(2.5)  # the event loop itself is blocked: nothing that has arrived can be taken
            assert color(llm) == "green"
            async for output in stream:
                tokens = tokens + output.token_ids
            assert tokens == reference.greedy("tiny", PROMPT, 5)

    asyncio.run(run())


def test_a_freeze_right_after_the_last_token_is_an_idle_pause(factory: ForkFactory) -> None:
    """The caller has all that is owed to it; that a rank has not yet ended its step is nobody's loss."""

    async def run() -> None:
        async with AsyncLLM(config_for(2, timeouts=QUICK), factory) as llm:
            for _ in range(3):
                assert await tokens_of(llm, 2) == reference.greedy("tiny", PROMPT, 2)
                for process in factory.processes.values():
                    process.send_signal(signal.SIGSTOP)
                await asyncio.sleep(1.9)
                for process in factory.processes.values():
                    process.send_signal(signal.SIGCONT)
            assert await tokens_of(llm, 2) == reference.greedy("tiny", PROMPT, 2)

    asyncio.run(run())


@pytest.mark.parametrize("moment", ["end", "begin"])
def test_a_rank_that_is_stopped_between_two_steps_is_found(moment: str) -> None:
    """One rank has no peer that waits for it: only the watchdog is left to say that the next step is to begin."""

    def before(role: str) -> None:
        whole = getattr(Pulse, moment)

        def halt(self: Pulse, *args: Any, **options: Any) -> None:
            last = self._row[1] + (moment == "end") == 3
            if last and moment == "begin":
                os.kill(os.getpid(), signal.SIGSTOP)
            whole(self, *args, **options)
            if last and moment == "end":
                os.kill(os.getpid(), signal.SIGSTOP)

        replace(Pulse, moment, halt)

    halting = ForkFactory(before)

    async def run() -> None:
        async with AsyncLLM(config_for(1, timeouts=QUICK), halting) as llm:
            with pytest.raises(EngineDeadError, match=r"dp0\.rank0: it is stopped by a signal \(watchdog"):
                await asyncio.wait_for(tokens_of(llm, 50), 10)

    asyncio.run(run())


def test_an_idle_engine_writes_no_pulse_and_needs_no_watchdog(factory: ForkFactory) -> None:
    async def run() -> None:
        async with AsyncLLM(config_for(2, timeouts=QUICK), factory) as llm:
            resources = llm.client._resources
            assert await tokens_of(llm, 2) == reference.greedy("tiny", PROMPT, 2)
            assert resources.watchdog is not None
            watchdog = resources.watchdog
            await until(lambda: watchdog.asleep)
            before = resources.pulses.read()
            assert [reading.busy for reading in before] == [False, False]
            await asyncio.sleep(0.3)
            assert resources.pulses.read() == before
            assert watchdog.deadline().at is None

    asyncio.run(run())


def reading(ended: int, busy: bool = False, beats: int = 0, at: float = 1.0, more: bool = False) -> Reading:
    return Reading(ended + busy, ended, beats, at, more)


@pytest.mark.parametrize(
    ("readings", "sent", "since", "culprit"),
    [
        ([reading(3), reading(3)], 0, None, ""),
        ([reading(3, at=4.0), reading(3, at=5.0)], 1, 5.0, "dp0.rank0"),
        ([reading(3, busy=True, at=4.0), reading(3, at=2.0)], 0, 4.0, "dp0.rank1"),
        ([reading(3, busy=True, beats=9), reading(3, busy=True, beats=7)], 0, 1.0, "dp0.rank1"),
        ([reading(3), reading(2, busy=True)], 0, 1.0, "dp0.rank1"),
        ([reading(2, busy=True, beats=7), reading(3, beats=9)], 0, 1.0, "dp0.rank0"),
        ([reading(3, at=4.0, more=True), reading(3)], 0, 4.0, "dp0.rank0"),
    ],
)
def test_what_is_owed_and_by_whom(readings: list[Reading], sent: int, since: float | None, culprit: str) -> None:
    traffic, link = Traffic(sent=sent), LinkReading(0, 0)
    assert health.stalled_since(readings, link, traffic) == since
    if since is not None:
        assert health.describe(readings, link, traffic, [])[0] == culprit


def test_what_another_client_sent_is_not_owed_to_this_one() -> None:
    table = PulseTable(2, 2)
    pulse = Pulse(os.dup(table.fileno()), 0, 2)
    pulse.link(1, 5, 7)
    pulse.begin()
    pulse.end()
    assert (table.link(0), table.link(1)) == (LinkReading(0, 0), LinkReading(5, 7))
    shared = PulseTable.shared(os.dup(table.fileno()), 2)
    assert (shared.read(), shared.link(1)) == (table.read(), LinkReading(5, 7))
    assert [reading.begun for reading in table.read()] == [1, 0]
    idle = [reading(1), reading(1)]
    assert health.stalled_since(idle, table.link(0), Traffic()) is None
    assert health.stalled_since(idle, table.link(1), Traffic(sent=5, received=7)) is None
    assert health.stalled_since(idle, table.link(1), Traffic(sent=6, received=7)) == 1.0
    for one in (table, shared):
        one.close()


def test_the_watchdog_looks_for_a_lost_output_on_its_own_clients_link() -> None:
    table = PulseTable(1, 2)
    pulse = Pulse(os.dup(table.fileno()), 0, 1)
    pulse.link(0, 1, 1)
    pulse.link(1, 1, 3)
    suspected: list[int] = []
    for client_index, traffic in ((0, Traffic(sent=1, received=1)), (1, Traffic(sent=1, received=2))):
        watchdog = Watchdog(0.0, table, traffic, ["a"], [], client_index)
        watchdog.suspect_output = suspected.append
        assert (watchdog.deadline().at is None) == (client_index == 0)
        deadline = time.monotonic() + MARGIN + 0.1
        while time.monotonic() < deadline:
            assert watchdog.bark() is None
            time.sleep(0.02)
    assert suspected[0] == 3
    assert set(suspected) == {3}
    table.close()


def test_a_stopped_process_is_told_from_a_running_and_a_gone_one() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:

        async def run() -> None:
            assert health.stopped([process.pid]) is None
            process.send_signal(signal.SIGSTOP)
            await until(lambda: health.stopped([process.pid]) == 0)
            assert health.stopped([os.getpid(), process.pid]) == 1

        try:
            asyncio.run(run())
        finally:
            process.kill()
    assert health.stopped([process.pid]) is None
