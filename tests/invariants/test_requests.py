"""I23 to I26: aborts, what they leave behind, and ids that are used again."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import time
from typing import Any

import pytest

from engine.errors import EngineGenerateError
from engine.llm import AsyncLLM
from engine.messages import (
    FinishReason,
    RequestOutput,
    SamplingParams,
)
from engine.model import reference
from engine.ports import Ports
from tests.engine.forks import ForkFactory, config_for, replace
from tests.invariants import Change, invariant
from tests.invariants.books import PAGES, nothing, require_nothing_left, with_books
from tests.invariants.callers import BOUND, PATIENT, PROMPT, both_kinds, serving, tokens_of, until


def reason_of(outputs: list[RequestOutput]) -> FinishReason | None:
    return outputs[-1].finish_reason


# ---- I23 ----


@invariant(
    "I23",
    breaks=(
        Change(
            "engine/scheduler.py",
            "sequence = self._live.get((client_index, request_id))",
            "sequence = self._live[client_index, request_id]",
        ),
        Change("engine/ports.py", "if isinstance(incoming.message, Abort):\n    self.aborts.popleft()", ""),
    ),
    kin=("I25", "I26"),
)
@both_kinds
def test_aborts_of_what_is_not_under_way_do_no_harm_whenever_they_come(kind: str) -> None:
    with serving(kind, 2, with_books) as caller:
        caller.abort("nobody", "early")
        caller.serve("early")
        caller.abort("early")  # finished
        caller.serve("early")

        caller.add("twice", 400)
        caller.read()
        caller.abort("twice", "nobody", "twice")
        caller.abort("twice")
        assert reason_of(caller.outputs_of("twice")["twice"]) is FinishReason.ABORT

        # Most likely rank 0 takes all of this in one go; it must not matter.
        caller.signal(0, signal.SIGSTOP)
        caller.abort("before")
        caller.add("before")
        caller.add("with", 400)
        caller.abort("with")
        caller.signal(0, signal.SIGCONT)
        told = caller.outputs_of("before", "with")
        assert tokens_of(told["before"]) == reference.greedy("tiny", PROMPT, 4)
        assert reason_of(told["with"]) is FinishReason.ABORT

        caller.serve()  # and nothing more comes of any of these
        require_nothing_left(caller)


# ---- I24 ----


@invariant(
    "I24",
    breaks=(
        Change("engine/core.py", "self._abort(message.request_ids, message.client_index)", "pass"),
        Change(
            "engine/scheduler.py",
            "for place in (self._running, self._waiting, self._held):",
            "for place in (self._running, self._waiting):",
        ),
        Change("engine/client/resources.py", "self.owed.discard(output.request_id)", "pass"),
    ),
    kin=("I1", "I3", "I9", "I23", "I25", "I26", "I28", "I30", "I33", "I39", "I41"),
)
@both_kinds
def test_an_aborted_request_leaves_nothing_wherever_it_was(kind: str) -> None:
    with serving(kind, 2, with_books, max_num_seqs=1) as caller:
        caller.add("running", 400)
        caller.add("waiting", 400)
        caller.read()
        caller.abort("waiting", "running")
        told = caller.outputs_of("running", "waiting")
        assert {reason_of(outputs) for outputs in told.values()} == {FinishReason.ABORT}
        assert tokens_of(told["waiting"]) == []
        require_nothing_left(caller)

        caller.add("frozen", 400)
        caller.read()
        caller.call("pause_scheduler", "keep")
        caller.add("held", 400)
        caller.abort("frozen", "held")
        told = caller.outputs_of("frozen", "held")
        assert {reason_of(outputs) for outputs in told.values()} == {FinishReason.ABORT}
        caller.call("resume_scheduler")
        require_nothing_left(caller)
        caller.serve()
        require_nothing_left(caller)


STREAMS = 1000
CANCELLED = 200
DROPPED = 200
TOKENS = 3
PROMPTS = [[seed, seed + 1] for seed in range(8)]

NEVER = -1
"""Instead of a number of tokens: cancelled before its first step."""


class Consumer:
    """One stream: it is `finished`, `cancelled`, or `dropped` without a word, the latter `after` that many tokens."""

    def __init__(self, llm: AsyncLLM, number: int, fate: str, after: int) -> None:
        self.fate, self.after = fate, after
        self._prompt = PROMPTS[number % len(PROMPTS)]
        self._begun = asyncio.Event()
        self._seen: list[int] = []
        self.task = asyncio.create_task(self._consume(llm), name="consumer")
        if fate == "cancelled" and after == NEVER:
            self.task.cancel()
        elif fate == "cancelled":
            self._cancellation = asyncio.create_task(self._cancel())

    async def _consume(self, llm: AsyncLLM) -> None:
        tokens = TOKENS if self.fate == "finished" else 400
        async for output in llm.generate(self._prompt, SamplingParams(tokens)):
            self._seen += output.token_ids
            if len(self._seen) == self.after:
                if self.fate == "dropped":
                    return
                self._begun.set()
        assert self.fate == "finished"

    async def _cancel(self) -> None:
        if self.after:
            await self._begun.wait()
        self.task.cancel()

    @property
    def was_aborted(self) -> bool:
        """Whether it had been sent when it was given up."""
        return self.fate == "dropped" or (self.fate == "cancelled" and self.after != NEVER)

    def require_its_end(self, golden: list[list[int]]) -> None:
        """It came to what it had to come to."""
        assert self.task.cancelled() == (self.fate == "cancelled")
        if self.fate != "cancelled":
            self.task.result()
        if self.fate == "finished":
            assert self._seen == golden[PROMPTS.index(self._prompt)]


async def what_is_held(llm: AsyncLLM, factory: ForkFactory) -> dict[str, Any]:
    """Whatever could have been left, in the engine, in the client and in every process."""
    resources = llm.client._resources
    counted = await llm.client.step_counters_async()
    pids = [os.getpid(), *(process.pid for process in factory.processes.values())]
    return {
        "requests": await llm.client.live_requests_async(),
        "under way": counted["accepted"] - counted["finished"] - counted["aborted"],
        "books": await llm.collective_rpc("books"),
        "owed": len(resources.owed),
        "calls": len(resources.calls),
        "streams": (len(llm._streams), len(llm._wire_ids)),
        "tasks": sorted(task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()),
        "descriptors": [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids],
    }


def what_is_left(before: dict[str, Any], after: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What is not as it was, by name. Descriptors may be fewer: those of the start are closed when ZMQ comes to it."""
    left = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    if all(now <= then for then, now in zip(before["descriptors"], after["descriptors"], strict=True)):
        left.pop("descriptors", None)
    return left


@invariant(
    "I24",
    breaks=(
        Change("engine/llm.py", "if not finished:\n    await self.client.abort_requests_async([wire_id])", ""),
        Change("engine/llm.py", "del self._streams[wire_id], self._wire_ids[name]", "del self._streams[wire_id]"),
    ),
    kin=("I26",),
)
def test_a_thousand_streams_of_which_many_are_cancelled_or_dropped_leave_nothing() -> None:
    golden = [reference.greedy("tiny", prompt, TOKENS) for prompt in PROMPTS]
    factory = ForkFactory(with_books)
    chance = random.Random(7)
    fates = ["cancelled"] * CANCELLED + ["dropped"] * DROPPED + ["finished"] * (STREAMS - CANCELLED - DROPPED)
    chance.shuffle(fates)

    async def run() -> None:
        async with AsyncLLM(config_for(2, timeouts=PATIENT, max_num_seqs=128, num_pages=4 * PAGES), factory) as llm:
            await Consumer(llm, 0, "finished", 0).task
            before = await what_is_held(llm, factory)
            assert before["books"] == [nothing(4 * PAGES)] * 2
            consumers = [
                Consumer(llm, number, fate, chance.choice((1, 2) if fate == "dropped" else (NEVER, 0, 1, 2)))
                for number, fate in enumerate(fates)
            ]
            await asyncio.wait([consumer.task for consumer in consumers])
            for consumer in consumers:
                consumer.require_its_end(golden)
            aborted = sum(consumer.was_aborted for consumer in consumers)
            del consumers, consumer
            deadline = time.monotonic() + BOUND
            while left := what_is_left(before, await what_is_held(llm, factory)):
                assert time.monotonic() < deadline, left
            counted = await llm.client.step_counters_async()
            assert (counted["finished"], counted["aborted"]) == (1 + STREAMS - CANCELLED - DROPPED, aborted)

    try:
        asyncio.run(asyncio.wait_for(run(), 60))
        assert factory.living() == []
    finally:
        factory.kill()


# ---- I25 ----


@invariant("I25", breaks=Change("engine/core.py", "aborted = late_aborts()", "aborted = late_aborts() and frozenset()"))
@both_kinds
@pytest.mark.parametrize("size", [1, 2])
def test_an_abort_that_comes_while_the_last_step_runs_wins(size: int, kind: str) -> None:
    def before(role: str) -> None:
        with_books(role)
        asked = Ports.late_aborts

        def late_aborts(self: Ports) -> frozenset[tuple[int, str]]:
            """The model has run: now wait until the abort is there."""
            self._ports[0].input.poll(int(BOUND * 1000))
            return asked(self)

        replace(Ports, "late_aborts", late_aborts)

    with serving(kind, size, before) as caller:
        caller.add("last", tokens=1)
        until(lambda: caller.client._resources.pulses.read()[0].busy, "the step has begun")
        caller.abort("last")
        assert caller.outputs_of("last")["last"] == [RequestOutput("last", [], FinishReason.ABORT)]
        require_nothing_left(caller)


# ---- I26 ----


@invariant(
    "I26",
    breaks=(
        Change("engine/client/sending.py", "if request.request_id in owed:", "if not request.request_id:"),
        Change("engine/ports.py", "if isinstance(incoming.message, Abort):\n    self.aborts.popleft()", ""),
    ),
    kin=("I23",),
)
@both_kinds
def test_an_id_that_is_used_again_after_its_end_is_a_request_of_its_own(kind: str) -> None:
    with serving(kind, 2, with_books) as caller:
        for turn in range(3):
            caller.add("same", 400, [turn])
            caller.read()
            with pytest.raises(EngineGenerateError, match="request id 'same' is already under way"):
                caller.add("same", 4, [100 + turn])
            caller.abort("same")
            with pytest.raises(EngineGenerateError, match="request id 'same' is already under way"):
                caller.add("same", 4, [100 + turn])  # its end has not been told yet
            assert reason_of(caller.outputs_of("same")["same"]) is FinishReason.ABORT
            caller.serve("same", 4, [200 + turn])
        require_nothing_left(caller)


@invariant("I26", breaks=Change("engine/llm.py", 'wire_id = f"{name}#{number}"', "wire_id = name"))
def test_a_stream_that_is_left_never_meets_the_next_one_of_its_name(factory: ForkFactory) -> None:
    async def run() -> None:
        async with AsyncLLM(config_for(2, timeouts=PATIENT), factory) as llm:
            for turn in range(3):
                left = llm.generate([turn], SamplingParams(400), "same")
                await anext(left)
                if turn % 2:
                    await left.aclose()
                else:
                    del left
                    gc.collect()
                    while "same" in llm._wire_ids:  # the loop ends it in a task
                        await asyncio.sleep(0)
                outputs = [output async for output in llm.generate([200 + turn], SamplingParams(4), "same")]
                assert tokens_of(outputs) == reference.greedy("tiny", [200 + turn], 4)
                assert reason_of(outputs) is FinishReason.LENGTH

    asyncio.run(run())
