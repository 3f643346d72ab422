"""Death is an event: it is seen at once, has one cause, and stays."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from unittest import mock

import pytest
import zmq

from engine.client.aio import AsyncMPClient
from engine.codec import packed, sealed
from engine.core import EngineCore, StepResult
from engine.errors import EngineDeadError, ExitCode
from engine.llm import AsyncLLM
from engine.messages import ENGINE_CORE_DEAD, Outputs, Request, RequestOutput, SamplingParams
from engine.model import reference
from engine.ports import Port
from tests.engine.forks import ForkFactory, config_for, replace


async def dies(awaitable: Awaitable[object], within: float = 2.0) -> EngineDeadError:
    """The EngineDeadError with which `awaitable` must end in time."""
    with pytest.raises(EngineDeadError) as caught:
        await asyncio.wait_for(awaitable, within)
    return caught.value


async def drain(client: AsyncMPClient, tokens: list[int] | None = None) -> EngineDeadError:
    """Read until the client says that its engine is dead; collect what it says before."""
    while True:
        try:
            batch = await asyncio.wait_for(client.get_output_async(), 3.0)
        except EngineDeadError as error:
            return error
        if tokens is not None:
            tokens += [token for output in batch.outputs for token in output.token_ids]


async def gone(factory: ForkFactory, within: float = 3.0) -> list[int | None]:
    """Exit codes of all ranks, which must all have left in time."""
    deadline = time.monotonic() + within
    while factory.living():
        assert time.monotonic() < deadline, f"still running: {factory.living()}"
        await asyncio.sleep(0.01)
    return factory.exits()


async def every_later_call_says_the_same(client: AsyncMPClient, error: EngineDeadError) -> None:
    for _ in range(3):
        assert await dies(client.get_output_async()) is error
        assert await dies(client.add_request_async(Request("late", [1], SamplingParams(1)))) is error
        with pytest.raises(EngineDeadError) as caught:
            client.check_health()
        assert caught.value is error
        await client.abort_requests_async(["late"])


@pytest.mark.parametrize(("size", "victim"), [(2, 0), (2, 1), (3, 2), (1, 0)])
@pytest.mark.parametrize("moment", ["idle", "streaming"])
def test_a_killed_rank_is_named_to_all_and_for_ever(size: int, victim: int, moment: str, factory: ForkFactory) -> None:
    async def run() -> None:
        client = AsyncMPClient(config_for(size), factory)
        if moment == "streaming":
            await client.add_request_async(Request("a", [1, 2], SamplingParams(400)))
            for _ in range(3):
                await client.get_output_async()
        reading = [asyncio.create_task(drain(client)) for _ in range(2)]
        await asyncio.sleep(0.02)
        role = f"dp0.rank{victim}"
        os.kill(factory.processes[role].pid, signal.SIGKILL)
        errors = await asyncio.gather(*reading)
        assert errors[0] is errors[1]
        assert errors[0].culprit == role
        assert errors[0].cause == "killed by SIGKILL"
        await every_later_call_says_the_same(client, errors[0])
        codes = await gone(factory)
        assert codes.pop(victim) == -signal.SIGKILL
        assert codes == [ExitCode.PEER_FAILED] * (size - 1)
        client.shutdown()

    asyncio.run(run())


def test_every_stream_gets_the_error_and_so_does_every_later_one(factory: ForkFactory) -> None:
    async def run() -> None:
        llm = AsyncLLM(config_for(2), factory)
        streams = [llm.generate([1, 2, 3], SamplingParams(400)) for _ in range(3)]
        for stream in streams:
            await anext(stream)
        os.kill(factory.processes["dp0.rank1"].pid, signal.SIGKILL)

        async def consume(stream: AsyncGenerator[RequestOutput, None]) -> None:
            async for _ in stream:
                pass

        errors = await asyncio.gather(*(dies(consume(stream)) for stream in streams))
        assert {error.culprit for error in errors} == {"dp0.rank1"}
        assert await dies(anext(llm.generate([1], SamplingParams(1)))) is errors[0]
        with pytest.raises(EngineDeadError):
            llm.check_health()
        llm.shutdown()

    asyncio.run(run())


def failing(victim: str, at_step: int) -> Callable[[str], None]:
    """`victim` raises in the step of that number."""

    def before(role: str) -> None:
        if role == victim:
            whole, steps = EngineCore.step, iter(range(1, 10_000))

            def step(self: EngineCore, *args: object) -> StepResult:
                if next(steps) == at_step:
                    raise ValueError("the step went wrong")
                return whole(self, *args)  # type: ignore[arg-type]

            replace(EngineCore, "step", step)

    return before


@pytest.mark.parametrize("victim", ["dp0.rank0", "dp0.rank1"])
def test_a_rank_that_raises_is_the_cause_and_outputs_before_it_arrive(victim: str) -> None:
    factory = ForkFactory(failing(victim, at_step=4))

    async def run() -> None:
        client = AsyncMPClient(config_for(2), factory)
        await asyncio.sleep(0.01)  # the receiver is at its wait
        await client.add_request_async(Request("a", [1, 2], SamplingParams(50)))
        time.sleep(0.6)  # the loop itself stands still: outputs and death are found together, outputs come first
        tokens: list[int] = []
        error = await drain(client, tokens)
        assert tokens == reference.greedy("tiny", [1, 2], 3)
        assert error.culprit == victim
        assert "ValueError: the step went wrong" in error.cause
        codes = await gone(factory)
        assert sorted(code or 0 for code in codes) == [ExitCode.OWN_FAILURE, ExitCode.PEER_FAILED]
        client.shutdown()

    asyncio.run(run())


def test_a_dying_rank_0_sends_one_dead_frame_behind_its_outputs(tmp_path: object) -> None:
    log = f"{tmp_path}/frames"

    def before(role: str) -> None:
        failing("dp0.rank0", at_step=3)(role)
        whole = zmq.Socket.send

        def send(self: zmq.Socket[bytes], data: bytes, *rest: object, **options: object) -> object:
            if self.socket_type == zmq.PUSH:
                with open(log, "a") as file:
                    file.write("dead\n" if data == ENGINE_CORE_DEAD else "outputs\n")
            return whole(self, data, *rest, **options)  # type: ignore[call-overload]

        replace(zmq.Socket, "send", send)

    async def run() -> None:
        client = AsyncMPClient(config_for(1), ForkFactory(before))
        await client.add_request_async(Request("a", [1, 2], SamplingParams(50)))
        await drain(client)
        client.shutdown()

    asyncio.run(run())
    with open(log) as file:
        assert file.read().split() == ["outputs", "outputs", "dead"]


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([b"\xc1garbage"], "its checksum does not match"),
        ([sealed(b"\xc1garbage")], "cannot be read"),
        ([packed(Outputs(9, 0, []))], "output 9 after 0, expected 1"),
        ([packed(Outputs(1, 0, [])), b"more"], "1 aux frames, of which 0 are used"),
    ],
)
def test_an_output_frame_that_is_not_the_next_one_is_death(
    frames: list[bytes], text: str, factory: ForkFactory
) -> None:
    async def run() -> None:
        client = AsyncMPClient(config_for(1), factory)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        stranger = context.socket(zmq.PUSH)
        stranger.connect(client.endpoints.address("output"))
        reader = asyncio.create_task(client.get_output_async())
        await asyncio.sleep(0)
        stranger.send_multipart(frames)
        error = await dies(reader)
        assert text in error.cause
        await every_later_call_says_the_same(client, error)
        await gone(factory)
        client.shutdown()
        context.destroy(linger=0)

    asyncio.run(run())


@pytest.mark.parametrize("before_first_step", [True, False])
def test_a_cancelled_receiver_is_death(before_first_step: bool, factory: ForkFactory) -> None:
    async def run() -> None:
        client = AsyncMPClient(config_for(1), factory)
        (receiver,) = (task for task in asyncio.all_tasks() if task.get_name() == "engine-receiver")
        if not before_first_step:
            await asyncio.sleep(0.01)
        receiver.cancel()
        error = await dies(client.get_output_async())
        assert "cancelled" in error.cause
        await every_later_call_says_the_same(client, error)
        await gone(factory)
        client.shutdown()

    asyncio.run(run())


def test_a_pause_shorter_than_the_step_deadline_is_no_death(factory: ForkFactory) -> None:
    async def run() -> list[int]:
        tokens: list[int] = []
        async with AsyncLLM(config_for(2), factory) as llm:
            async for output in llm.generate([1, 2], SamplingParams(12)):
                tokens += output.token_ids
                if len(tokens) in (3, 6):
                    process = factory.processes[f"dp0.rank{len(tokens) // 6}"]
                    process.send_signal(signal.SIGSTOP)
                    await asyncio.sleep(0.3)
                    process.send_signal(signal.SIGCONT)
            for process in factory.processes.values():  # idle there is no deadline at all
                process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(1.3)
            for process in factory.processes.values():
                process.send_signal(signal.SIGCONT)
            async for output in llm.generate([1, 2], SamplingParams(2)):
                tokens += output.token_ids
        return tokens

    assert asyncio.run(run()) == reference.greedy("tiny", [1, 2], 12) + reference.greedy("tiny", [1, 2], 2)


@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_stopped_for_good_is_accused_at_the_step_deadline(size: int, factory: ForkFactory) -> None:
    async def run() -> None:
        client = AsyncMPClient(config_for(size), factory)
        await client.add_request_async(Request("a", [1, 2], SamplingParams(400)))
        await client.get_output_async()
        factory.processes["dp0.rank1"].send_signal(signal.SIGSTOP)
        error = await drain(client)
        assert error.culprit == "dp0.rank1"
        codes = await gone(factory, within=6.0)
        assert codes[1] == -signal.SIGKILL
        assert codes[0] == ExitCode.DEADLINE
        client.shutdown()

    asyncio.run(run())


def test_a_lost_request_message_is_an_error_at_the_next_one() -> None:
    def before(role: str) -> None:
        whole, seen = Port.receive, iter([True])

        def receive(self: Port) -> None:
            if self.input.poll(0) and next(seen, False):
                self.input.recv_multipart()
            whole(self)

        replace(Port, "receive", receive)

    factory = ForkFactory(before)

    async def run() -> None:
        client = AsyncMPClient(config_for(1), factory)
        with contextlib.suppress(EngineDeadError):
            await client.add_request_async(Request("a", [1], SamplingParams(2)))
            await asyncio.sleep(0.05)
            await client.add_request_async(Request("b", [1], SamplingParams(2)))
        error = await drain(client)
        assert "input message 2 after 0, expected 1" in error.cause
        client.shutdown()

    asyncio.run(run())


@pytest.mark.parametrize("sent", [False, True], ids=["not-sent", "sent"])
def test_a_send_that_is_broken_off_ends_the_engine_for_its_client(sent: bool, factory: ForkFactory) -> None:
    """Ctrl-C in the middle of a send: nobody knows the number of the next message."""

    async def run() -> None:
        client = AsyncMPClient(config_for(2), factory)
        await client.live_requests_async()
        whole = zmq.Socket.send_multipart

        def broken_off(socket: zmq.Socket[bytes], frames: list[bytes], flags: int) -> None:
            if sent:
                whole(socket, frames, flags)
            raise KeyboardInterrupt

        with mock.patch.object(zmq.Socket, "send_multipart", broken_off), pytest.raises(KeyboardInterrupt):
            await client.add_request_async(Request("a", [1], SamplingParams(1)))
        error = await dies(client.add_request_async(Request("b", [1], SamplingParams(1))))
        assert (error.culprit, error.cause) == ("client", "a send was broken off by KeyboardInterrupt: ")
        await every_later_call_says_the_same(client, error)
        await gone(factory)
        client.shutdown()

    asyncio.run(run())
