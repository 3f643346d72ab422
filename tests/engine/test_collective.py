"""Utility calls over real ranks: every rank takes part, every result is told, and none is taken for another's."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
import zmq

from engine.client.aio import AsyncMPClient
from engine.clock import Deadline
from engine.codec import Array
from engine.config import Timeouts
from engine.control import QUEUE
from engine.errors import DeadlineExceeded, EngineDeadError, RelayError, UtilityError
from engine.messages import FinishReason, Request, RequestOutput, SamplingParams
from engine.model import reference
from engine.model.llama import Llama
from engine.relay import frames
from engine.relay.frames import FrameKind, Result
from engine.workers import WORKER_METHODS, RankWorkers
from tests.engine.forks import ForkFactory, config_for, replace
from tests.engine.seats import EPOCH, place, within

PATIENT = Timeouts(startup=20.0, handshake=10.0, step=30.0, stall=20.0, shutdown=5.0)
PROMPT = [3, 1, 4, 1, 5]
T = TypeVar("T")


def served(factory: ForkFactory, size: int, use: Callable[[AsyncMPClient], Awaitable[T]], **changes: Any) -> T:
    """What `use` returns of an engine of that many ranks, which compare their digests in every step."""

    async def run() -> T:
        client = AsyncMPClient(config_for(size, **{"timeouts": PATIENT, **changes}), factory)
        try:
            return await use(client)
        finally:
            client.shutdown()

    return asyncio.run(asyncio.wait_for(run(), 60))


async def outputs_of(client: AsyncMPClient, *names: str) -> dict[str, list[RequestOutput]]:
    """Read until these requests have ended."""
    told: dict[str, list[RequestOutput]] = {name: [] for name in names}
    while not all(outputs and outputs[-1].finish_reason for outputs in told.values()):
        for output in (await client.get_output_async()).outputs:
            told[output.request_id].append(output)
    return told


def tokens(outputs: list[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def on_rank(role: str, method: Callable[..., Any], otherwise: Any = None) -> Callable[[str], None]:
    """Registers a worker method that does this on one rank and returns `otherwise` on the others."""

    def before(own: str) -> None:
        def special(core: Any) -> Any:
            return method() if own == role else otherwise

        WORKER_METHODS.register(special)

    return before


@pytest.mark.parametrize("relay", ["pushpull", "subscribed", "handshake"])
def test_every_rank_answers_and_the_answers_come_by_rank(relay: str, factory: ForkFactory) -> None:
    async def use(client: AsyncMPClient) -> None:
        infos = await client.collective_rpc_async("rank_info")
        pids = [factory.processes[f"dp0.rank{rank}"].pid for rank in range(3)]
        assert infos == [{"role": f"dp0.rank{rank}", "rank": rank, "pid": pids[rank]} for rank in range(3)]
        digests = await client.collective_rpc_async("digest")
        assert digests == [digests[0]] * 3

    served(factory, 3, use, relay=relay)


def test_arrays_of_every_type_come_back_from_every_rank_as_they_went(factory: ForkFactory) -> None:
    values = [
        torch.arange(600, dtype=torch.float32).to(torch.bfloat16).reshape(2, 300),
        np.arange(5, dtype=np.int16),
        np.zeros((0, 3)),
        np.random.default_rng(1).normal(size=1 << 19),  # 4 MiB
    ]

    async def use(client: AsyncMPClient) -> None:
        for value in values:
            assert await client.collective_rpc_async("echo", value) == [Array.of(value)] * 3

    served(factory, 3, use)


def test_more_calls_at_once_than_control_can_queue_are_all_answered_each_with_its_own(factory: ForkFactory) -> None:
    count = 40 * QUEUE

    async def use(client: AsyncMPClient) -> None:
        calls = [client.collective_rpc_async("echo", [index, "x" * 2000]) for index in range(count)]
        results = await asyncio.gather(*calls)
        assert results == [[[index, "x" * 2000]] * 2 for index in range(count)]

    served(factory, 2, use)


def test_calls_between_the_steps_of_requests_change_no_token(factory: ForkFactory) -> None:
    async def use(client: AsyncMPClient) -> None:
        for name in ("a", "b", "c"):
            await client.add_request_async(Request(name, PROMPT, SamplingParams(20)))
        reading = asyncio.create_task(outputs_of(client, "a", "b", "c"))
        while not reading.done():
            assert len(await client.collective_rpc_async("digest")) == 3
        for outputs in reading.result().values():
            assert tokens(outputs) == reference.greedy("tiny", PROMPT, 20)
        assert await client.call_utility_async("live_requests") == []

    served(factory, 3, use)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_failure_on_one_rank_names_it_and_the_engine_goes_on(rank: int) -> None:
    def broken() -> None:
        raise RuntimeError("it broke")

    factory = ForkFactory(on_rank(f"dp0.rank{rank}", broken, otherwise=7))

    async def use(client: AsyncMPClient) -> None:
        with pytest.raises(UtilityError) as caught:
            await client.collective_rpc_async("special")
        assert str(caught.value) == f"Call to collective_rpc method failed: dp0.rank{rank}: it broke"
        assert await client.collective_rpc_async("echo", 1) == [1, 1, 1]
        await client.add_request_async(Request("a", PROMPT, SamplingParams(4)))
        assert tokens((await outputs_of(client, "a"))["a"]) == reference.greedy("tiny", PROMPT, 4)

    served(factory, 3, use)
    assert factory.living() == []


def test_a_result_that_one_rank_cannot_send_names_it(factory: ForkFactory) -> None:
    factory = ForkFactory(on_rank("dp0.rank1", object))

    async def use(client: AsyncMPClient) -> None:
        with pytest.raises(UtilityError, match=r"failed: dp0\.rank1: its result cannot be sent: .* got object"):
            await client.collective_rpc_async("special")
        assert await client.collective_rpc_async("echo", 1) == [1, 1]

    served(factory, 2, use)
    assert factory.living() == []


def test_a_rank_that_does_not_answer_by_the_deadline_is_named() -> None:
    factory = ForkFactory(on_rank("dp0.rank2", signal.pause))

    async def use(client: AsyncMPClient) -> EngineDeadError:
        with pytest.raises(EngineDeadError) as caught:
            await client.collective_rpc_async("special")
        return caught.value

    try:
        error = served(factory, 3, use, timeouts=Timeouts.profile("short"))
        assert error.culprit == "dp0.rank2"
        assert "collective call 1: no RESULT came from dp0.rank2 in" in error.cause
        assert factory.living() == []
    finally:
        factory.kill()


def test_a_rank_that_dies_in_a_call_is_named() -> None:
    factory = ForkFactory(on_rank("dp0.rank1", lambda: os._exit(9)))

    async def use(client: AsyncMPClient) -> EngineDeadError:
        with pytest.raises(EngineDeadError) as caught:
            await client.collective_rpc_async("special")
        return caught.value

    assert served(factory, 3, use).culprit == "dp0.rank1"
    assert factory.living() == []


@pytest.mark.parametrize("size", [1, 2, 3])
def test_pauses_and_sleeps_over_real_ranks(size: int, factory: ForkFactory) -> None:
    """The ranks compare in every step what they did; a rank that were awake alone would hang the others."""

    async def use(client: AsyncMPClient) -> None:
        async def ask(name: str, count: int) -> None:
            await client.add_request_async(Request(name, PROMPT, SamplingParams(count)))

        await ask("kept", 30)
        await client.call_utility_async("pause_scheduler", "keep")
        await ask("held", 3)
        assert await client.call_utility_async("live_requests") == [[0, "kept"], [0, "held"]]
        await client.call_utility_async("resume_scheduler")
        waited = asyncio.create_task(client.call_utility_async("pause_scheduler", "wait"))
        told = await outputs_of(client, "kept", "held")
        assert await waited is None
        assert tokens(told["kept"]) == reference.greedy("tiny", PROMPT, 30)
        assert tokens(told["held"]) == reference.greedy("tiny", PROMPT, 3)
        await client.call_utility_async("resume_scheduler")

        full = await client.collective_rpc_async("memory")
        await ask("ended", 400)
        await client.call_utility_async("sleep", 2)
        assert (await outputs_of(client, "ended"))["ended"][-1].finish_reason is FinishReason.ABORT
        assert await client.collective_rpc_async("memory") == [{"weights": 0, "kv_cache": 0}] * size
        await ask("asleep", 5)
        await client.call_utility_async("wake_up", ["weights"])
        assert await client.call_utility_async("is_sleeping") is True
        await client.call_utility_async("wake_up", ["kv_cache"])
        assert tokens((await outputs_of(client, "asleep"))["asleep"]) == reference.greedy("tiny", PROMPT, 5)
        assert await client.collective_rpc_async("memory") == full

    served(factory, size, use)


def test_a_rank_that_cannot_wake_up_ends_the_engine_as_the_cause() -> None:
    def before(role: str) -> None:
        def load(self: Llama) -> None:
            raise MemoryError("no room for the weights")

        def unload(self: Llama) -> None:
            replace(Llama, "load", load)

        if role == "dp0.rank1":
            replace(Llama, "unload", unload)

    factory = ForkFactory(before)

    async def use(client: AsyncMPClient) -> EngineDeadError:
        await client.call_utility_async("sleep", 2)
        await asyncio.gather(client.call_utility_async("wake_up"), return_exceptions=True)
        with pytest.raises(EngineDeadError) as caught:
            await client.get_output_async()
        return caught.value

    error = served(factory, 2, use)
    assert error.culprit == "dp0.rank1"
    assert "this rank cannot wake up: no room for the weights" in error.cause
    assert factory.living() == []


def test_a_profile_has_a_trace_of_every_rank(factory: ForkFactory, tmp_path: Path) -> None:
    async def use(client: AsyncMPClient) -> list[str]:
        await client.call_utility_async("profile", True, str(tmp_path))
        await client.add_request_async(Request("a", PROMPT, SamplingParams(3)))
        assert tokens((await outputs_of(client, "a"))["a"]) == reference.greedy("tiny", PROMPT, 3)
        paths: list[str] = await client.call_utility_async("profile", False)
        with pytest.raises(UtilityError, match=r"dp0\.rank0: directory '/nothing' cannot be written to: No such file"):
            await client.call_utility_async("profile", True, "/nothing")
        return paths

    paths = served(factory, 2, use)
    assert [Path(path).name.rsplit(".", 4)[0] for path in paths] == ["dp0.rank0", "dp0.rank1"]
    assert sorted(paths) == sorted(str(path) for path in tmp_path.iterdir())
    for path in paths:
        names = {event.get("name") for event in json.loads(Path(path).read_text())["traceEvents"]}
        assert "aten::linear" in names


# ---- the records on `control` ----


def result(number: int, rank: int, call: int, content: bytes = b"") -> bytes:
    return frames.encode(FrameKind.RESULT, EPOCH, number, Result(rank, call, None, content))


def test_results_of_calls_ahead_are_kept_for_their_own_call(tmp_path: Path) -> None:
    with place(tmp_path, 3) as here:
        inbox, one, two = here.control(0), here.control(1), here.control(2)
        for call in (1, 2, 3):
            assert one.give(Result(1, call, None, b"one %d" % call))
        assert two.give(Result(2, 1, "it broke", b""))
        workers = RankWorkers(0, here.roles, inbox, here.lifeline())
        workers.arm(Deadline.after(5))
        assert workers.gather(Result(0, 1, None, b"zero")) == [
            Result(0, 1, None, b"zero"),
            Result(1, 1, None, b"one 1"),
            Result(2, 1, "it broke", b""),
        ]
        workers.arm(Deadline.after(0.05))
        with pytest.raises(DeadlineExceeded, match=r"call 2: no RESULT came from dp0\.rank2 in 0") as caught:
            workers.gather(Result(0, 2, None, b"zero"))
        assert caught.value.culprit == "dp0.rank2"
        # Too late for its own call, and not taken for the next one's.
        assert two.give(Result(2, 2, None, b"late"))
        with pytest.raises(DeadlineExceeded, match=r"call 3: no RESULT came from dp0\.rank2"):
            workers.gather(Result(0, 3, None, b"zero"))


@pytest.mark.parametrize("call", [0, 1, 3])
def test_a_result_of_a_call_whose_turn_it_is_not_is_an_error(call: int, tmp_path: Path) -> None:
    with place(tmp_path, 2) as here:
        inbox = here.control(0)
        stranger = here.context.socket(zmq.PUSH)
        stranger.connect(here.address("control"))
        stranger.send(result(1, 1, 1))
        assert inbox.socket.poll(3000)
        inbox.listen()
        stranger.send(result(2, 1, call))
        assert inbox.socket.poll(3000)
        with pytest.raises(RelayError, match=f"dp0.rank1 gives the result of collective call {call}, expected 2"):
            inbox.listen()


def test_a_rank_whose_queue_is_full_waits_for_room_and_names_rank_0_at_the_deadline(tmp_path: Path) -> None:
    with place(tmp_path, 2) as here:
        outbox = here.control(1)
        workers = RankWorkers(1, here.roles, outbox, here.lifeline())
        call = 1
        while outbox.give(Result(1, call, None, b"")):
            call += 1
        workers.arm(Deadline.after(0.1))
        with pytest.raises(DeadlineExceeded, match=r"RESULT was not taken in 0\.\d+ s: the queue is full") as caught:
            workers.gather(Result(1, call, None, b""))
        assert caught.value.culprit == "dp0.rank0"
        workers.arm(Deadline.after(20))
        ended = within(lambda: workers.gather(Result(1, call, None, b"")))
        inbox = here.control(0)
        while call not in [number for number in range(1, call + 1) if not inbox.without_result(number)]:
            assert inbox.socket.poll(3000)
            inbox.listen()
        assert ended() is None
