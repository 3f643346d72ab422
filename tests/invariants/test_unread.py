"""I5 and I6: what was sent is read, all of it, and before anything is said of a death."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import NoReturn

import numpy as np
import pytest

import engine.client.resources
from engine.client.aio import AsyncMPClient
from engine.codec import Array
from engine.core import EngineCore
from engine.errors import EngineDeadError
from engine.health import is_stopped
from engine.messages import Outputs, Request, SamplingParams
from engine.pulse import Pulse
from tests.engine.forks import ForkFactory, config_for
from tests.engine.wires import ahead
from tests.invariants import Change, invariant
from tests.invariants.callers import BOUND, PATIENT, PROMPT, both_kinds, serving, tokens_of, until
from tests.invariants.outputs import golden, rest_of
from tests.invariants.vigil import FOREVER, LEAD

PORTS, INBOX = "engine/ports.py", "engine/client/inbox.py"
AIO, RECEIVING = "engine/client/aio.py", "engine/client/receiving.py"


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
    kin=("I2", "I6", "I33", "I37", "I39", "I40"),
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
    breaks=Change(
        AIO,
        "with contextlib.suppress(Exception):  # what the receiver has failed on must not keep anybody waiting\n"
        "    self._take_the_rest()",
        "",
    ),
    kin=("I6", "I37", "I39", "I40"),
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
        batches = [await asyncio.wait_for(client.get_output_async(), BOUND) for _ in range(3)]
        assert tokens_of([output for batch in batches for output in batch.outputs]) == golden(3)
        with pytest.raises(EngineDeadError, match="the step went wrong"):
            await asyncio.wait_for(client.get_output_async(), BOUND)

    asyncio.run(run())
    client.shutdown()


@invariant(
    "I5",
    breaks=Change(
        PORTS, "self.output.close(linger=0 if nobody_reads else OUTPUT_LINGER)", "self.output.close(linger=0)"
    ),
    kin=("I39", "I40"),
)
@both_kinds
def test_a_large_answer_leaves_a_rank_0_that_fails_before_its_dead_frame_does(kind: str) -> None:
    array = np.arange(3 << 19)
    with serving(kind, before=ahead(LEAD, EngineCore, "step", fail, nth=2)) as caller:
        call = caller.begin_call("collective_rpc", "echo", [array])
        until(lambda: caller.client._resources.traffic.sent == 1, "the call is sent")
        caller.add("a", FOREVER)  # which needs a second step
        assert call.result(BOUND) == [Array.of(array)]
        assert rest_of(caller)[1].culprit == LEAD


def stop_oneself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@invariant(
    "I5",
    breaks=Change("engine/client/resources.py", "if not self._await_the_rest():\n    return", "return"),
    kin=("I39", "I40"),
)
@both_kinds
def test_a_large_answer_that_is_still_on_its_way_at_the_death_of_another_rank_comes_before_the_error(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.client.resources, "REST_LIMIT", 1000 * BOUND)
    array = np.arange(3 << 16)
    with serving(kind, 2, ahead(LEAD, Pulse, "end", stop_oneself)) as caller:
        call = caller.begin_call("collective_rpc", "echo", [array])
        until(lambda: is_stopped(caller.pid(0)), "rank 0 has sent its answer, and most of it has not left")
        caller.signal(1, signal.SIGKILL)
        until(lambda: caller.client.dead is not None, "the death is known")
        caller.signal(0, signal.SIGCONT)
        assert call.result(BOUND) == [Array.of(array)] * 2
        assert rest_of(caller)[1].culprit == "dp0.rank1"


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
def test_a_reader_that_is_cancelled_as_its_batch_comes_leaves_it_to_the_next(factory: ForkFactory) -> None:
    client = AsyncMPClient(config_for(1, timeouts=PATIENT), factory)

    async def run() -> None:
        first, second = (asyncio.ensure_future(client.get_output_async()) for _ in range(2))
        await client.add_request_async(Request("a", PROMPT, SamplingParams(1)))
        attachment = client._attachment
        assert attachment is not None
        while not attachment.inbox._outputs:  # until the very turn of the loop in which the batch comes
            assert not first.done()
            await asyncio.sleep(0)
        assert not first.done()
        first.cancel()
        batch = await asyncio.wait_for(second, BOUND)
        assert tokens_of(batch.outputs) == golden(1)
        assert first.cancelled()

    asyncio.run(asyncio.wait_for(run(), 2 * BOUND))
    client.shutdown()


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
    kin=("I2", "I5", "I37"),
)
@pytest.mark.parametrize(
    ("hook", "what"), [(BrokenHook, "nothing more"), (StuckHook, "receiver cancelled"), (StuckHook, "engine dies")]
)
def test_a_batch_whose_hook_does_not_come_to_its_end_is_delivered(hook: type[AsyncMPClient], what: str) -> None:
    factory = ForkFactory(ahead(LEAD, EngineCore, "step", fail, nth=5) if what == "engine dies" else None)
    client = hook(config_for(1, timeouts=PATIENT), factory)

    async def run() -> None:
        await client.add_request_async(Request("a", PROMPT, SamplingParams(FOREVER)))
        tokens = tokens_of((await client.get_output_async()).outputs)
        if what == "receiver cancelled":
            while client._resources.traffic.received < 2:
                await asyncio.sleep(0.001)
            (receiver,) = (task for task in asyncio.all_tasks() if task.get_name() == "engine-receiver")
            receiver.cancel()
        with contextlib.suppress(EngineDeadError):
            while True:
                tokens += tokens_of((await client.get_output_async()).outputs)
        # What a failure of the client's own leaves unread is nobody's promise.
        assert tokens[:4] == golden(4)[: len(tokens)]
        assert len(tokens) == 4 if what == "engine dies" else len(tokens) >= 2

    asyncio.run(asyncio.wait_for(run(), BOUND))
    factory.kill()
    client.shutdown()
