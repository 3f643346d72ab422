"""The client starts all or nothing, belongs to one loop, is never kept alive by its own parts, leaves nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest
import torch
import zmq

from engine.client.aio import AsyncMPClient
from engine.client.sending import Outbox
from engine.codec import Array
from engine.errors import EngineDeadError, EngineGenerateError, ExitCode, StartupError
from engine.launch import Process
from engine.llm import AsyncLLM
from engine.messages import FinishReason, Outputs, Request, SamplingParams
from engine.model import llama, reference, weights
from engine.model.config import MODELS
from engine.parallel.group import TensorGroup
from tests.engine.forks import ForkFactory, config_for, replace


async def answer(client: AsyncMPClient, request: Request) -> list[int]:
    await client.add_request_async(request)
    tokens: list[int] = []
    while True:
        for output in (await asyncio.wait_for(client.get_output_async(), 5.0)).outputs:
            tokens += output.token_ids
            if output.finish_reason is not None:
                return tokens


async def read_all(client: AsyncMPClient) -> None:
    while True:
        await asyncio.wait_for(client.get_output_async(), 1)


def test_a_client_built_outside_of_a_loop_starts_its_receiver_with_the_first_call(factory: ForkFactory) -> None:
    client = AsyncMPClient(config_for(2), factory)

    async def run() -> None:
        assert [task for task in asyncio.all_tasks() if task.get_name() == "engine-receiver"] == []
        assert await answer(client, Request("a", [5], SamplingParams(3))) == reference.greedy("tiny", [5], 3)
        assert await answer(client, Request("b", [6], SamplingParams(3))) == reference.greedy("tiny", [6], 3)
        assert len([task for task in asyncio.all_tasks() if task.get_name() == "engine-receiver"]) == 1

    asyncio.run(run())
    client.shutdown()


def test_death_before_any_loop_is_told_by_the_first_read(factory: ForkFactory) -> None:
    client = AsyncMPClient(config_for(2), factory)
    os.kill(factory.processes["dp0.rank0"].pid, signal.SIGKILL)
    deadline = time.monotonic() + 2
    while client.dead is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)

    async def read() -> Outputs:
        return await asyncio.wait_for(client.get_output_async(), 1.0)

    with pytest.raises(EngineDeadError, match=r"dp0\.rank0"):
        asyncio.run(read())
    client.shutdown()


def test_a_forgotten_client_is_collected_with_everything_it_held(factory: ForkFactory) -> None:
    async def run() -> None:
        client = AsyncMPClient(config_for(2), factory)
        await answer(client, Request("a", [5], SamplingParams(2)))
        directory, ghost = client.endpoints.directory, weakref.ref(client)
        del client
        gc.collect()
        assert ghost() is None
        assert factory.exits() == [ExitCode.STOPPED, ExitCode.STOPPED]
        assert not os.path.exists(directory)
        await asyncio.sleep(0.01)
        assert [task for task in asyncio.all_tasks() if task.get_name() == "engine-receiver"] == []

    asyncio.run(run())
    assert [thread for thread in threading.enumerate() if thread.name == "engine-monitor"] == []


@pytest.mark.parametrize("size", [1, 2, 4])
def test_an_orderly_shutdown_leaves_nothing_and_can_be_repeated(size: int, factory: ForkFactory) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))

    async def run() -> None:
        client = AsyncMPClient(config_for(size), factory)
        await client.add_request_async(Request("a", [1], SamplingParams(300)))
        await client.get_output_async()
        client.shutdown()
        assert factory.exits() == [ExitCode.STOPPED] * size
        assert not os.path.exists(client.endpoints.directory)
        with pytest.raises(EngineDeadError, match="shut down"):
            await read_all(client)  # outputs that had arrived come first
        client.shutdown()
        with pytest.raises(EngineDeadError, match="shut down"):
            await client.add_request_async(Request("b", [1], SamplingParams(1)))

    asyncio.run(run())
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_shutdown_from_two_other_threads_while_the_loop_runs(factory: ForkFactory) -> None:
    async def run() -> None:
        client = AsyncMPClient(config_for(2), factory)
        reader = asyncio.create_task(client.get_output_async())
        await asyncio.gather(*(asyncio.to_thread(client.shutdown) for _ in range(2)))
        with pytest.raises(EngineDeadError, match="shut down"):
            await asyncio.wait_for(reader, 1)

    asyncio.run(run())
    assert factory.exits() == [ExitCode.STOPPED] * 2


def test_shutdown_after_the_loop_is_closed(factory: ForkFactory) -> None:
    client = AsyncMPClient(config_for(2), factory)
    asyncio.run(answer(client, Request("a", [1], SamplingParams(1))))
    client.shutdown()
    assert not os.path.exists(client.endpoints.directory)
    assert factory.living() == []


@pytest.mark.parametrize("phase", ["group", "model"])
@pytest.mark.parametrize("how", ["raise", "kill", "hang"])
def test_a_failed_start_names_role_phase_and_cause_and_leaves_nothing(
    phase: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def before(role: str) -> None:
        if role != "dp0.rank1":
            return

        def fail(*_: object) -> None:
            if how == "raise":
                raise MemoryError("no room")
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)

        if phase == "group":
            replace(TensorGroup, "form", fail)
        else:
            replace(llama.Llama, "__init__", fail)

    factory = ForkFactory(before)
    descriptors = len(os.listdir("/proc/self/fd"))
    config = config_for(2)
    if how == "hang":
        config = config_for(2, timeouts=type(config.timeouts)(startup=1.0, handshake=0.8, step=1.0, shutdown=1.0))
    began = time.monotonic()
    with pytest.raises(StartupError) as caught:
        AsyncMPClient(config, factory)
    assert time.monotonic() - began < 6
    error = caught.value
    assert isinstance(error, EngineDeadError)
    assert error.role == error.culprit == "dp0.rank1"
    assert error.phase == phase
    wanted = {
        "raise": (ExitCode.OWN_FAILURE, "MemoryError: no room"),
        "kill": (-signal.SIGKILL, "killed by SIGKILL"),
        "hang": (error.exit_code, ""),
    }[how]
    assert error.exit_code == wanted[0]
    assert wanted[1] in error.cause
    assert factory.living() == []
    gc.collect()
    assert os.listdir(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_a_factory_that_cannot_start_a_rank_is_a_failed_start(factory: ForkFactory) -> None:
    class Half:
        def start(self, role: str, target: str, args: tuple[str | int | bytes, ...], fds: Sequence[int]) -> Process:
            if role == "dp0.rank1":
                raise OSError("no more processes")
            return factory.start(role, target, args, fds)

    with pytest.raises(StartupError, match=r"dp0\.rank1: cannot be started: no more processes"):
        AsyncMPClient(config_for(2), Half())
    assert factory.living() == []


def test_aborts_end_a_request_and_free_its_place(factory: ForkFactory) -> None:
    async def run() -> None:
        async with AsyncLLM(config_for(2, max_num_seqs=1), factory) as llm:
            first = llm.generate([1, 2, 3], SamplingParams(400), request_id="long")
            await anext(first)
            await llm.abort("long")
            reasons = [output.finish_reason async for output in first]
            assert reasons[-1] == FinishReason.ABORT
            # Leaving an iteration early aborts as well; the one place is free for the next request.
            second = llm.generate([4], SamplingParams(400))
            await anext(second)
            await second.aclose()
            cancelled = asyncio.create_task(anext(llm.generate([4], SamplingParams(400))))
            await asyncio.sleep(0)
            cancelled.cancel()
            await llm.client.abort_requests_async(["nobody", "long", "long"])
            tokens = [t async for output in llm.generate([1], SamplingParams(3)) for t in output.token_ids]
            assert tokens == reference.greedy("tiny", [1], 3)

    asyncio.run(asyncio.wait_for(run(), 10))


def test_an_id_that_is_used_again_belongs_to_the_new_request(factory: ForkFactory) -> None:
    """What still comes for the one that was left early must not reach the next of the same name."""

    async def run() -> None:
        async with AsyncLLM(config_for(2), factory) as llm:
            for turn in range(10):
                left = llm.generate([turn], SamplingParams(300), "same")
                first = await anext(left)
                assert first.request_id == "same"
                await left.aclose()
                outputs = [output async for output in llm.generate([200 + turn], SamplingParams(4), "same")]
                assert {output.request_id for output in outputs} == {"same"}
                assert [t for output in outputs for t in output.token_ids] == reference.greedy("tiny", [200 + turn], 4)
                assert outputs[-1].finish_reason == FinishReason.LENGTH

    asyncio.run(run())


def test_an_id_of_the_callers_never_meets_an_automatic_one(factory: ForkFactory) -> None:
    async def run() -> None:
        async with AsyncLLM(config_for(1), factory) as llm:
            mine = llm.generate([1], SamplingParams(300), "request-1")
            await anext(mine)
            outputs = [output async for output in llm.generate([7], SamplingParams(2))]
            assert [t for output in outputs for t in output.token_ids] == reference.greedy("tiny", [7], 2)
            assert outputs[0].request_id != "request-1"
            await mine.aclose()

    asyncio.run(run())


class Stubborn:
    """A sequence that does not tell what it holds."""

    def __iter__(self) -> NoReturn:
        raise OSError("not today")


def test_a_request_that_cannot_be_encoded_fails_alone(factory: ForkFactory) -> None:
    async def run() -> None:
        async with AsyncLLM(config_for(1), factory) as llm:
            for bad in ([2**70], ["x"], [1.5], None, 7, Stubborn()):
                with pytest.raises(EngineGenerateError, match="cannot be sent"):
                    await anext(llm.generate(bad, SamplingParams(3)))
            stream = llm.generate([1], SamplingParams(30), request_id="same")
            await anext(stream)
            with pytest.raises(EngineGenerateError, match="already under way"):
                await anext(llm.generate([1], SamplingParams(3), request_id="same"))
            await stream.aclose()
            tokens = [t async for output in llm.generate([1], SamplingParams(3)) for t in output.token_ids]
            assert tokens == reference.greedy("tiny", [1], 3)

    asyncio.run(run())


@pytest.mark.parametrize("fast", [True, False])
def test_large_arrays_can_be_cancelled_on_their_way_however_fast_they_go(
    factory: ForkFactory, monkeypatch: pytest.MonkeyPatch, fast: bool
) -> None:
    embeds = weights.full(MODELS["tiny"], "embedding")[[1, 2, 3]].numpy()
    send = Outbox.add

    def sent(self: Outbox, request: Request) -> zmq.MessageTracker | None:
        parcel = send(self, request)
        assert parcel is not None
        if fast:
            parcel.wait()
        return parcel

    monkeypatch.setattr(Outbox, "add", sent)

    async def run() -> None:
        client = AsyncMPClient(config_for(2), factory)
        task = asyncio.create_task(client.add_request_async(Request("a", [], SamplingParams(3), Array.of(embeds))))
        await asyncio.sleep(0)
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        client.shutdown()

    asyncio.run(run())


@pytest.mark.parametrize("stop", [True, False])
def test_a_forgotten_engine_needs_no_collection_of_garbage_to_go(factory: ForkFactory, stop: bool) -> None:
    """Nor does its client, once it was shut down: no error that anybody was told keeps it through its traceback."""

    async def run() -> None:
        llm = AsyncLLM(config_for(2), factory)
        stream = llm.generate([1], SamplingParams(400))
        await anext(stream)
        front, client, pids = weakref.ref(llm), weakref.ref(llm.client), list(llm.client.pids.values())
        if stop:
            llm.shutdown()
        del llm, stream
        for _ in range(20):
            await asyncio.sleep(0)
        assert front() is None
        assert client() is None
        assert not any(running(pid) for pid in pids)

    gc.collect()
    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()


@pytest.mark.parametrize("at_once", [True, False])
def test_an_output_task_that_ends_is_the_death_of_the_engine(factory: ForkFactory, at_once: bool) -> None:
    """Streams under way, later ones and the ranks hear of it; nobody waits for outputs that none hands out any more."""

    async def end(llm: AsyncLLM) -> None:
        stream = llm.generate([1], SamplingParams(400))
        waiting = asyncio.ensure_future(anext(stream))
        if not at_once:
            await waiting
            waiting = asyncio.ensure_future(anext(stream))
        while not (tasks := [task for task in asyncio.all_tasks() if task.get_name() == "engine-outputs"]):
            await asyncio.sleep(0)
        tasks[0].cancel()
        for ask in (lambda: waiting, lambda: anext(llm.generate([1], SamplingParams(3)))):
            with pytest.raises(EngineDeadError, match="client: the output task was cancelled"):
                await asyncio.wait_for(ask(), 5)
        with pytest.raises(EngineDeadError, match="the output task was cancelled"):
            llm.check_health()
        deadline = time.monotonic() + 5
        while llm.client.pids and any(running(pid) for pid in llm.client.pids.values()):
            assert time.monotonic() < deadline, "a rank outlived the engine"
            await asyncio.sleep(0.01)

    async def run() -> None:
        async with AsyncLLM(config_for(2), factory) as llm:
            await end(llm)

    asyncio.run(run())


def test_an_idle_client_arms_no_timer_and_a_waiting_reader_none_either(factory: ForkFactory) -> None:
    async def run() -> None:
        client = AsyncMPClient(config_for(2), factory)
        await answer(client, Request("a", [1], SamplingParams(2)))
        reader = asyncio.create_task(client.get_output_async())
        await asyncio.sleep(0.05)
        timers = [timer for timer in asyncio.get_running_loop()._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        assert timers == []
        reader.cancel()
        client.shutdown()

    asyncio.run(run())


LAUNCHER = """
import asyncio
from engine.client.aio import AsyncMPClient
from engine.messages import Request, SamplingParams
from tests.engine.forks import ForkFactory, config_for

async def main():
    clients = []
    for size, relay, busy in ((3, "handshake", False), (2, "handshake", True), (2, "unsynchronised", False)):
        client = AsyncMPClient(config_for(size, relay=relay), ForkFactory())
        if busy:
            await client.add_request_async(Request("a", [1], SamplingParams(500)))
            await client.get_output_async()
        print(client.endpoints.directory, *client.pids.values(), flush=True)
        clients.append(client)
    await asyncio.gather(*(client.get_output_async() for client in clients[::2]))

asyncio.run(main())
"""


def test_ranks_leave_and_their_folder_goes_when_the_launcher_is_killed() -> None:
    """Idle, while streaming, and stuck in the unbounded receive of the unsynchronised relay."""
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE, text=True)
    if launcher.stdout is None:
        raise RuntimeError("no pipe")
    with launcher.stdout:
        engines = [launcher.stdout.readline().split() for _ in range(3)]
        assert [len(engine) for engine in engines] == [4, 3, 3]
        launcher.kill()
        launcher.wait()
    deadline = time.monotonic() + 2
    for directory, *pids in engines:
        while any(running(int(pid)) for pid in pids) or os.path.exists(directory):
            assert time.monotonic() < deadline, "a rank or its folder outlived the launcher"
            time.sleep(0.01)


def running(pid: int) -> bool:
    """Whether a process exists and is not a zombie that nobody has reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_torch_runs_on_one_thread_in_a_rank(tmp_path: Path) -> None:
    def before(role: str) -> None:
        whole = llama.Llama.__init__

        def init(self: llama.Llama, *args: object) -> None:
            (tmp_path / role).write_text(str(torch.get_num_threads()))
            whole(self, *args)  # type: ignore[arg-type]

        replace(llama.Llama, "__init__", init)

    AsyncMPClient(config_for(2), ForkFactory(before)).shutdown()
    assert [(tmp_path / f"dp0.rank{rank}").read_text() for rank in (0, 1)] == ["1", "1"]
