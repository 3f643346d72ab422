"""I1 to I4: every request has its tokens, in order, once, to the end, and only who asked for them has them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zmq

from engine.client.aio import AsyncMPClient
from engine.errors import EngineDeadError
from engine.llm import AsyncLLM
from engine.messages import FinishReason, Outputs, Request, SamplingParams
from engine.model import reference
from engine.ports import Ports
from tests.engine.forks import ForkFactory, config_for, replace
from tests.engine.peers import PATIENCE
from tests.invariants import Change, invariant
from tests.invariants.callers import BOUND, PATIENT, PROMPT, both_kinds, serving, tokens_of
from tests.invariants.gates import Bell
from tests.invariants.guests import joined
from tests.invariants.outputs import golden, rest_of
from tests.invariants.vigil import FOREVER, LEAD

CORE, PORTS, INBOX = "engine/core.py", "engine/ports.py", "engine/client/inbox.py"
AIO, SYNC, RECEIVING = "engine/client/aio.py", "engine/client/sync.py", "engine/client/receiving.py"


# ---- I1: one end ----


@invariant(
    "I1",
    breaks=(
        Change(CORE, "if refusal is not None:\n    self._result.tell(client, [refusal])", "pass"),
        Change(CORE, "self._result.tell(client, ended)", "pass"),
    ),
    kin=("I3", "I16", "I22", "I23", "I24", "I25", "I26", "I28", "I30", "I33", "I37", "I39", "I40"),
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
        short, *long = [
            asyncio.create_task(consume(llm, count, end)) for count, end in zip((3, 500, 500, 500), ends, strict=True)
        ]
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
    prompts = {f"r{length}": list(range(7, 7 + length)) for length in (1, 2, 17, 3)}
    with serving(kind, 2, max_batched_tokens=16, max_num_seqs=3) as caller:
        for name, prompt in prompts.items():
            caller.add(name, 4, prompt)
        rows = reference.embedded("tiny", [9, 8, 7]).double().numpy()
        caller.begin_add(Request("rows", [], SamplingParams(4), rows)).result(BOUND)  # type: ignore[arg-type]
        told = {name: tokens_of(outputs) for name, outputs in caller.outputs_of(*prompts, "rows").items()}
        assert told == {
            **{name: golden(4, prompt) for name, prompt in prompts.items()},
            "rows": golden(4, [9, 8, 7]),
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
    """Takes its time with every other batch: a while, or until another has been taken in, which must not be."""

    seen: list[int]

    async def process_engine_outputs(self, outputs: Outputs) -> None:
        self.seen.append(outputs.number)
        for _ in range(outputs.number % 2 * 20):
            if self._resources.traffic.received == outputs.number:
                await asyncio.sleep(0.002)


@invariant(
    "I2",
    breaks=Change(AIO, "await self._deliver(batch)", "self._busy.add(asyncio.ensure_future(self._deliver(batch)))"),
    kin=("I6",),
)
def test_a_hook_that_waits_changes_no_order(factory: ForkFactory) -> None:
    client = SlowHook(config_for(1, timeouts=PATIENT), factory)
    client.seen = []

    async def run() -> None:
        await client.add_request_async(Request("a", PROMPT, SamplingParams(8)))
        batches = [await client.get_output_async() for _ in range(8)]
        assert [batch.number for batch in batches] == client.seen == list(range(1, 9))
        assert tokens_of([output for batch in batches for output in batch.outputs]) == golden(8)

    asyncio.run(asyncio.wait_for(run(), BOUND))
    client.shutdown()


# ---- I3: nothing after the end ----


def waiting_for_abort(nth: int, bell: Bell) -> Callable[[str], None]:
    """In its step of that number, rank 0 rings and does not ask for late aborts before something has come in."""

    def before(role: str) -> None:
        whole, calls = Ports.late_aborts, iter(range(1, 1000))

        def late_aborts(self: Ports) -> frozenset[tuple[int, str]]:
            if next(calls) == nth:
                bell.ring()
                assert self._ports[0].input.poll(PATIENCE)
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
    kin=("I1", "I23", "I24", "I25", "I26", "I30", "I33", "I39"),
)
@both_kinds
def test_no_output_follows_an_abort_that_comes_in_the_middle_of_a_step(kind: str) -> None:
    bell = Bell()
    with contextlib.closing(bell), serving(kind, 2, waiting_for_abort(3, bell), [bell.fileno()]) as caller:
        caller.add("a", FOREVER)
        bell.wait()
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
    kin=("I12", "I24", "I29", "I39"),
)
@both_kinds
def test_each_client_has_the_outputs_and_replies_of_its_own_calls(kind: str) -> None:
    with serving(kind, 2, client_count=2) as owner, joined(owner) as guest:
        prompts = {owner: [1, 2], guest: [3, 4, 5]}
        for caller, prompt in prompts.items():
            caller.add("same", 4, prompt)
            caller.add("again", 4, prompt[::-1])
        for caller in (guest, owner):
            mine = [caller.client.client_index, caller.pid(0)]
            assert caller.call("collective_rpc", "echo", [mine]) == [mine, mine]
        for caller, prompt in prompts.items():
            told = {name: tokens_of(outputs) for name, outputs in caller.outputs_of("same", "again").items()}
            assert told == {"same": golden(4, prompt), "again": golden(4, prompt[::-1])}
