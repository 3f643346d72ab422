"""I1 to I6: every request has its tokens, in order, once, to the end, and only who asked for them has them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import pytest
import zmq

from engine.client.aio import AsyncMPClient
from engine.codec import Array
from engine.core import EngineCore
from engine.errors import EngineDeadError
from engine.llm import AsyncLLM
from engine.messages import FinishReason, Outputs, Request, RequestOutput, SamplingParams
from engine.model import reference
from engine.ports import Ports
from tests.engine.driving import LoopDriver
from tests.engine.forks import ForkFactory, config_for, replace
from tests.engine.wires import ahead, die
from tests.invariants import Change, invariant
from tests.invariants.callers import BOUND, PATIENT, PROMPT, Caller, both_kinds, serving, tokens_of, until
from tests.invariants.guests import joined
from tests.invariants.vigil import FOREVER, LEAD

CORE, PORTS, INBOX = "engine/core.py", "engine/ports.py", "engine/client/inbox.py"
AIO, SYNC, RECEIVING = "engine/client/aio.py", "engine/client/sync.py", "engine/client/receiving.py"


def golden(count: int, prompt: Sequence[int] = PROMPT) -> list[int]:
    return reference.greedy("tiny", list(prompt), count)


def rest_of(caller: Caller) -> tuple[list[RequestOutput], EngineDeadError]:
    """What can still be read, and the error that comes behind it."""
    outputs: list[RequestOutput] = []
    while True:
        read = caller.begin_read()
        try:
            outputs += read.result(BOUND).outputs
        except EngineDeadError as error:
            return outputs, error


# ---- I1: one end ----


@invariant(
    "I1",
    breaks=(
        Change(CORE, "if refusal is not None:\n    self._result.tell(client, [refusal])", "pass"),
        Change(CORE, "self._result.tell(client, ended)", "pass"),
    ),
    kin=("I23", "I24", "I25", "I26", "I28", "I33", "I39", "I40"),
)
@both_kinds
def test_every_request_has_one_end_and_nothing_comes_after_it(kind: str) -> None:
    stop = golden(3)[-1]
    requests = [
        Request("length", PROMPT, SamplingParams(3)),
        Request("stop", PROMPT, SamplingParams(FOREVER, stop_token_ids=[stop])),
        Request("aborted", PROMPT, SamplingParams(FOREVER)),
        Request("aborted while it waits", PROMPT, SamplingParams(FOREVER)),
        Request("unknown token", [70_000], SamplingParams(3)),
        Request("too long", PROMPT, SamplingParams(10_000)),
        Request("no embeddings", [], SamplingParams(3), np.ones((2, 3))),  # type: ignore[arg-type]
    ]
    with serving(kind, 2, max_num_seqs=3) as caller:
        for request in requests:
            caller.begin_add(request).result(BOUND)
        caller.abort("aborted", "aborted while it waits", "length")
        names = [request.request_id for request in requests]
        ends = {name: outputs[-1].finish_reason for name, outputs in caller.outputs_of(*names).items()}
        assert ends.pop("length") in (FinishReason.LENGTH, FinishReason.ABORT)
        assert ends == {
            "stop": FinishReason.STOP,
            "aborted": FinishReason.ABORT,
            "aborted while it waits": FinishReason.ABORT,
            "unknown token": FinishReason.ERROR,
            "too long": FinishReason.ERROR,
            "no embeddings": FinishReason.ERROR,
        }
        assert caller.call("live_requests") == []
        caller.client.shutdown()
        assert rest_of(caller)[0] == []


@invariant(
    "I1",
    breaks=Change(
        "engine/llm.py",
        "for stream in streams.values():\n    stream.put_nowait(error)",
        "for stream in list(streams.values())[:1]:\n    stream.put_nowait(error)",
    ),
)
@pytest.mark.parametrize("how", ["killed", "shut down"])
def test_every_generation_ends_once_with_a_last_output_or_an_error(how: str, factory: ForkFactory) -> None:
    async def consume(llm: AsyncLLM, count: int, ends: list[object]) -> None:
        try:
            async for output in llm.generate(PROMPT, SamplingParams(count)):
                ends += [output.finish_reason] if output.finish_reason is not None else []
        except EngineDeadError as error:
            ends.append(error.cause)

    async def run() -> None:
        llm = AsyncLLM(config_for(2, timeouts=PATIENT), factory)
        ends: list[list[object]] = [[] for _ in range(4)]
        short, *long = [asyncio.create_task(consume(llm, count, end)) for count, end in zip((3, 500, 500, 500), ends)]
        await asyncio.wait_for(short, BOUND)
        if how == "killed":
            factory.kill()
        else:
            await asyncio.to_thread(llm.shutdown)
        await asyncio.wait_for(asyncio.gather(*long), BOUND)
        expected = ["killed by SIGKILL"] if how == "killed" else [FinishReason.ABORT]
        assert ends == [[FinishReason.LENGTH], expected, expected, expected]
        llm.shutdown()

    asyncio.run(run())


# ---- I2: in order, once ----


@invariant(
    "I2",
    breaks=Change(
        CORE,
        "for row, (chunk, token) in enumerate(zip(sampled, tokens, strict=True)):",
        "for row, (chunk, token) in enumerate(zip(sampled, tokens[::-1], strict=True)):",
    ),
    kin=("I3", "I4", "I5", "I6", "I8", "I24", "I26", "I28", "I39"),
)
@both_kinds
def test_the_tokens_of_requests_side_by_side_are_the_references(kind: str) -> None:
    prompts = {f"r{length}": list(range(7, 7 + length)) for length in (1, 2, 17, 40, 3)}
    with serving(kind, 2, max_batched_tokens=16, max_num_seqs=4) as caller:
        for name, prompt in prompts.items():
            caller.add(name, 12, prompt)
        rows = reference.embedded("tiny", [9, 8, 7]).double().numpy()
        caller.begin_add(Request("rows", [], SamplingParams(12), rows)).result(BOUND)  # type: ignore[arg-type]
        told = {name: tokens_of(outputs) for name, outputs in caller.outputs_of(*prompts, "rows").items()}
        assert told == {
            **{name: golden(12, prompt) for name, prompt in prompts.items()},
            "rows": golden(12, [9, 8, 7]),
        }


def third_output(change: Callable[[Any], list[Any]]) -> Callable[[str], None]:
    """Rank 0 sends what `change` makes of its third message, on a socket that knows of no numbers."""

    def before(role: str) -> None:
        whole, count = zmq.Socket.send_multipart, iter(range(1, 1000))

        def send(self: zmq.Socket[bytes], frames: Any, *rest: Any, **options: Any) -> Any:
            if self.socket_type == zmq.PUSH and next(count) == 3:
                for one in change(frames):
                    whole(self, one, *rest, **options)
                return None
            return whole(self, frames, *rest, **options)

        replace(zmq.Socket, "send_multipart", send)

    return before


@invariant(
    "I2",
    breaks=(
        Change(RECEIVING, "if outputs.number != expected:", "if outputs.number < expected:"),
        Change(RECEIVING, "if outputs.number != expected:", "if outputs.number > expected:"),
    ),
    kin=("I13", "I14"),
)
@both_kinds
@pytest.mark.parametrize(
    ("change", "tokens", "said"),
    [
        pytest.param(lambda frames: [], 2, "sent output 4 after 2, expected 3", id="lost"),
        pytest.param(lambda frames: [frames, frames], 3, "sent output 3 after 3, expected 4", id="twice"),
    ],
)
def test_a_message_that_is_lost_or_comes_twice_is_an_error_and_no_token(
    change: Callable[[Any], list[Any]], tokens: int, said: str, kind: str
) -> None:
    with serving(kind, before=third_output(change)) as caller:
        caller.add("a", FOREVER)
        outputs, error = rest_of(caller)
        assert tokens_of(outputs) == golden(tokens)
        assert (error.culprit, error.cause) == (LEAD, said)


class SlowHook(AsyncMPClient):
    """Takes its time with every other batch."""

    seen: list[int]

    async def process_engine_outputs(self, outputs: Outputs) -> None:
        self.seen.append(outputs.number)
        for _ in range(outputs.number % 2 * 10):
            await asyncio.sleep(0)


@invariant(
    "I2",
    breaks=Change(AIO, "await self._deliver(batch)", "self._busy.add(asyncio.ensure_future(self._deliver(batch)))"),
    kin=("I6",),
)
def test_a_hook_that_waits_changes_no_order(factory: ForkFactory) -> None:
    client = SlowHook(config_for(1, timeouts=PATIENT), factory)
    client.seen = []

    async def run() -> None:
        await client.add_request_async(Request("a", PROMPT, SamplingParams(20)))
        batches = [await asyncio.wait_for(client.get_output_async(), BOUND) for _ in range(20)]
        assert [batch.number for batch in batches] == client.seen == list(range(1, 21))
        assert tokens_of([output for batch in batches for output in batch.outputs]) == golden(20)

    asyncio.run(run())
    client.shutdown()


# ---- I3: nothing after the end ----


def waiting_for_abort(nth: int) -> Callable[[str], None]:
    """In its step of that number, rank 0 does not ask for late aborts before something has come in."""

    def before(role: str) -> None:
        whole, calls = Ports.late_aborts, iter(range(1, 1000))

        def late_aborts(self: Ports) -> frozenset[tuple[int, str]]:
            if next(calls) == nth:
                assert self._ports[0].input.poll(1000 * BOUND)
            return whole(self)

        if role == LEAD:
            replace(Ports, "late_aborts", late_aborts)

    return before


@invariant(
    "I3",
    breaks=(
        Change("engine/scheduler.py", "self._end(sequence)\nself.counters.aborted += 1", "self.counters.aborted += 1"),
        Change(CORE, "if reason is not None and key in aborted:", "if key in aborted:"),
    ),
    kin=("I1", "I23", "I24", "I25", "I26"),
)
@both_kinds
def test_no_output_follows_an_abort_that_comes_in_the_middle_of_a_step(kind: str) -> None:
    with serving(kind, 2, waiting_for_abort(3)) as caller:
        caller.add("a", FOREVER)
        for _ in range(2):
            caller.read()
        caller.abort("a")
        (outputs,) = caller.outputs_of("a").values()
        assert outputs[-1].finish_reason is FinishReason.ABORT
        caller.serve()  # raises for an output of any other request
        assert caller.call("live_requests") == []
        caller.client.shutdown()
        assert rest_of(caller)[0] == []


# ---- I4: to whom it belongs ----


@invariant(
    "I4",
    breaks=(
        Change(PORTS, "outputs = result.outputs.get(port.client_index, [])", "outputs = result.outputs.get(0, [])"),
        Change(CORE, "self._result.tell(key[0], [output])", "self._result.tell(0, [output])"),
        Change(PORTS, "self._ports[client_index].send([], reply)", "self._ports[0].send([], reply)"),
    ),
    kin=("I12", "I24", "I29"),
)
@both_kinds
def test_each_client_has_the_outputs_and_replies_of_its_own_calls(kind: str) -> None:
    with serving(kind, 2, client_count=2) as owner, joined(owner) as guest:
        prompts = {owner: [1, 2], guest: [3, 4, 5]}
        for caller, prompt in prompts.items():
            caller.add("same", 20, prompt)
            caller.add("again", 20, prompt[::-1])
        for caller in (guest, owner):
            mine = [caller.client.client_index, caller.pid(0)]
            assert caller.call("collective_rpc", "echo", [mine]) == [mine, mine]
        for caller, prompt in prompts.items():
            told = {name: tokens_of(outputs) for name, outputs in caller.outputs_of("same", "again").items()}
            assert told == {"same": golden(20, prompt), "again": golden(20, prompt[::-1])}


# ---- I5: what came before the death ----


def fail() -> NoReturn:
    raise ValueError("the step went wrong")


@invariant(
    "I5",
    breaks=(
        Change(
            INBOX,
            "while not self._outputs:\n    if self._closed:\n        self._latch.check()\n"
            "    reader = asyncio.get_running_loop().create_future()",
            "self._latch.check()\nwhile not self._outputs:\n    if self._closed: self._latch.check()\n"
            "    reader = asyncio.get_running_loop().create_future()",
        ),
        Change(
            INBOX,
            "while not self._outputs:\n    if self._closed:\n        self._latch.check()\n    if deadline.expired():",
            "self._latch.check()\nwhile not self._outputs:\n"
            "    if self._closed: self._latch.check()\n    if deadline.expired():",
        ),
    ),
    kin=("I2", "I39", "I40"),
)
@both_kinds
@pytest.mark.parametrize("victim", ["dp0.rank0", "dp0.rank1"])
def test_outputs_that_nobody_had_read_before_the_death_are_read_before_its_error(victim: str, kind: str) -> None:
    with serving(kind, 2, ahead(victim, EngineCore, "step", fail, nth=6)) as caller:
        caller.add("a", FOREVER)
        until(lambda: caller.client.dead is not None, "the death is known")
        outputs, error = rest_of(caller)
        assert tokens_of(outputs) == golden(5)
        assert (error.culprit, error.cause) == (victim, "ValueError: the step went wrong")


@invariant(
    "I5",
    breaks=Change(AIO, "self._take_the_rest()\nself._reception.over = True", "self._reception.over = True"),
)
def test_outputs_and_death_that_are_found_together_come_in_this_order() -> None:
    """The loop itself stands still until the engine is dead."""
    client = AsyncMPClient(config_for(1, timeouts=PATIENT), ForkFactory(ahead(LEAD, EngineCore, "step", fail, nth=4)))

    async def run() -> None:
        await client.add_request_async(Request("a", PROMPT, SamplingParams(FOREVER)))
        deadline = time.monotonic() + BOUND
        while client.dead is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        tokens: list[int] = []
        with pytest.raises(EngineDeadError, match="the step went wrong"):
            while True:
                tokens += tokens_of((await asyncio.wait_for(client.get_output_async(), BOUND)).outputs)
        assert tokens == golden(3)

    asyncio.run(run())
    client.shutdown()


def killed_in_its_second_step(data: bytes = b"") -> None:
    die(data)


@invariant(
    "I5",
    breaks=(
        Change(PORTS, "self.output.close(linger=0 if nobody_reads else OUTPUT_LINGER)", "self.output.close(linger=0)"),
        Change("engine/client/resources.py", "if not self._await_the_rest():\n    return", "return"),
    ),
    kin=("I39", "I40"),
)
@both_kinds
@pytest.mark.parametrize("how", ["rank 0 raises", "rank 1 is killed"])
def test_a_large_answer_that_is_still_on_its_way_comes_before_the_error(how: str, kind: str) -> None:
    victim, act = (LEAD, fail) if how == "rank 0 raises" else ("dp0.rank1", killed_in_its_second_step)
    array = np.arange(4 << 20, dtype=np.int64)
    with serving(kind, 2, ahead(victim, EngineCore, "step", act, nth=2)) as caller:
        call = caller.begin_call("collective_rpc", "echo", [array])
        until(lambda: caller.client._resources.traffic.sent == 1, "the call is sent")
        caller.add("a", FOREVER)  # which needs a second step
        assert call.result(BOUND) == [Array.of(array)] * 2
        assert rest_of(caller)[1].culprit == victim


# ---- I6: no output is left out ----


@invariant(
    "I6",
    breaks=(
        Change(
            RECEIVING,
            "return outputs if outputs.outputs or outputs.stats is not None else None",
            "return outputs if outputs.outputs and outputs.stats is None else None",
        ),
        Change(
            RECEIVING,
            "return outputs if outputs.outputs or outputs.stats is not None else None",
            "return outputs if outputs.outputs else None",
        ),
    ),
)
@both_kinds
def test_a_batch_of_outputs_or_of_statistics_or_of_both_is_delivered(kind: str) -> None:
    with serving(kind, 2, log_stats=True, max_batched_tokens=8) as caller:
        caller.add("a", 3, prompt := list(range(20)))  # of which the first two steps bring no token
        batches = [caller.read() for _ in range(5)]
        assert [tokens_of(batch.outputs) for batch in batches] == [[], [], *([token] for token in golden(3, prompt))]
        assert [batch.stats.steps for batch in batches if batch.stats is not None] == [1, 2, 3, 4, 5]


@invariant(
    "I6", breaks=Change(INBOX, "self._wake_one()  # the wake-up was this reader's; somebody else must have it", "pass")
)
def test_a_reader_that_is_cancelled_as_its_batch_comes_leaves_it_to_the_next() -> None:
    driver, factory = LoopDriver(), ForkFactory()
    driver.build(config_for(1, timeouts=PATIENT), factory, inside=True)
    readers = [driver.read() for _ in range(2)]
    driver.turn(2)
    driver.add(Request("a", PROMPT, SamplingParams(1)))
    attachment = driver.client._attachment if driver.client is not None else None
    assert attachment is not None
    deadline = time.monotonic() + BOUND
    while not attachment.inbox._outputs:
        assert time.monotonic() < deadline
        driver.turn(1)
    assert not any(reader.done() for reader in readers)
    readers[0].cancel()  # the batch is there, and the first reader was told so
    batch = driver.loop.run_until_complete(asyncio.wait_for(readers[1], BOUND))
    assert tokens_of(batch.outputs) == golden(1)
    assert readers[0].cancelled()
    driver.shut("here", None, False)
    driver.drop()
    driver.close()


class StuckHook(AsyncMPClient):
    """Never comes back from its second batch."""

    async def process_engine_outputs(self, outputs: Outputs) -> None:
        if outputs.number == 2:
            await asyncio.Event().wait()


class BrokenHook(AsyncMPClient):
    """Fails on its second batch."""

    async def process_engine_outputs(self, outputs: Outputs) -> None:
        if outputs.number == 2:
            raise ValueError("the hook went wrong")


@invariant(
    "I6",
    breaks=(
        Change(AIO, "finally:\n    self._put_held()", "finally:\n    self._held = None"),
        Change(AIO, "self._put_held()\nfor batch in self._batches():", "for batch in self._batches():"),
    ),
    kin=("I2", "I5"),
)
@pytest.mark.parametrize("hook", [StuckHook, BrokenHook])
def test_a_batch_whose_hook_is_cancelled_or_fails_is_delivered(hook: type[AsyncMPClient], factory: ForkFactory) -> None:
    client = hook(config_for(1, timeouts=PATIENT), factory)

    async def run() -> None:
        await client.add_request_async(Request("a", PROMPT, SamplingParams(4)))
        first = await asyncio.wait_for(client.get_output_async(), BOUND)
        read = asyncio.ensure_future(client.get_output_async())
        if hook is StuckHook:
            while client._resources.traffic.received < 2:
                await asyncio.sleep(0.001)
            (receiver,) = (task for task in asyncio.all_tasks() if task.get_name() == "engine-receiver")
            receiver.cancel()
        second = await asyncio.wait_for(read, BOUND)
        assert tokens_of([*first.outputs, *second.outputs]) == golden(2)

    asyncio.run(run())
    factory.kill()
    client.shutdown()
