"""I29 to I33: utility calls and their replies, early, late, repeated, failed, deferred, or for nobody."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from engine.codec import Array
from engine.config import Timeouts
from engine.errors import UtilityError, UtilityTimeout
from engine.messages import NOTIFICATION_CALL_ID, FinishReason, RequestOutput, UtilityOutput
from engine.ports import Port
from engine.utilities import UTILITIES
from engine.workers import WORKER_METHODS
from tests.engine.driving import begin
from tests.engine.forks import replace
from tests.invariants import Change, invariant
from tests.invariants.callers import BOUND, Call, Caller, LoopCaller, both_kinds, dies, serving, until
from tests.invariants.gates import Gate


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.close()


def open_calls(caller: Caller) -> int:
    return len(caller.client._resources.calls)


def fails(call: Call) -> UtilityError:
    """The error with which this call must end in time."""
    with pytest.raises(UtilityError) as caught:
        call.result(BOUND)
    return caught.value


# ---- I29 ----

ONE_ID_FOR_ALL = Change("engine/client/calls.py", "call_id = next(self._ids) % _IDS", "call_id = 0")


@invariant(
    "I29",
    breaks=ONE_ID_FOR_ALL,
    kin=("I7", "I8", "I11", "I17", "I30", "I32", "I33"),
)
@both_kinds
def test_each_reply_reaches_its_own_call(kind: str) -> None:
    with serving(kind, 2) as caller:
        assert caller.call("is_sleeping") is False  # the very first call of a client that was built outside of a loop
        caller.add("meanwhile", 40)
        calls = [caller.begin_call("collective_rpc", "echo", [number]) for number in range(100)]
        assert [call.result(BOUND) for call in calls] == [[number] * 2 for number in range(100)]
        assert caller.outputs_of("meanwhile")["meanwhile"][-1].finish_reason is FinishReason.LENGTH
        assert open_calls(caller) == 0


@invariant(
    "I29",
    breaks=Change(
        "engine/client/calls.py",
        'method, future = self._open.pop(reply.call_id, ("", None))',
        "method, future = self._open.pop(reply.call_id)",
    ),
    kin=("I30", "I32", "I43"),
)
@both_kinds
def test_replies_for_nobody_disturb_nobody(kind: str) -> None:
    """Rank 0 says every reply twice, and between them replies to calls that nobody has made."""

    def before(role: str) -> None:
        send = Port.send

        def talkative(
            self: Port, outputs: list[RequestOutput], utility: UtilityOutput | None = None, **rest: Any
        ) -> None:
            if utility is not None:
                for call_id in (utility.call_id ^ 1 << 63, NOTIFICATION_CALL_ID):
                    send(self, [], UtilityOutput(call_id, "not yours"))
                send(self, [], utility)
            send(self, outputs, utility, **rest)

        replace(Port, "send", talkative)

    with serving(kind, 2, before) as caller:
        calls = [caller.begin_call("collective_rpc", "echo", [number]) for number in range(20)]
        assert [call.result(BOUND) for call in calls] == [[number] * 2 for number in range(20)]
        caller.serve()
        assert caller.client.dead is None
        assert open_calls(caller) == 0


# ---- I30 ----


@invariant(
    "I30",
    breaks=(
        Change("engine/client/aio.py", "calls.leave(call_id)", "pass"),
        Change("engine/client/sync.py", "calls.leave(call_id)", "pass"),
    ),
    kin=("I31", "I32", "I43"),
)
@both_kinds
def test_a_call_that_was_given_up_is_forgotten_and_the_next_one_works(kind: str) -> None:
    with serving(kind, 2) as caller:
        caller.add("long", 400)
        # It has no reply while something is under way.
        error = fails(caller.begin_call("pause_scheduler", "wait", timeout=0.05))
        assert isinstance(error, UtilityTimeout)
        assert (error.method, error.text) == (
            "pause_scheduler",
            "no reply to pause_scheduler came within 0.05 s",
        )
        assert open_calls(caller) == 0
        if isinstance(caller, LoopCaller):
            give_up_by_cancelling(caller)
        assert caller.call("is_scheduler_paused") is True
        caller.abort("long")  # brings the replies, for which nobody waits any more
        assert caller.outputs_of("long")["long"][-1].finish_reason is FinishReason.ABORT
        assert caller.call("collective_rpc", "echo", ["next"]) == ["next"] * 2
        caller.call("resume_scheduler")
        caller.serve()
        assert open_calls(caller) == 0


def give_up_by_cancelling(caller: LoopCaller) -> None:
    """Once while it waits for its reply, once before its first step."""
    waiting = caller.begin_call("pause_scheduler", "wait")
    until(lambda: open_calls(caller) == 1, "the call is on its way")
    waiting.cancel()
    until(lambda: open_calls(caller) == 0, "the call is forgotten")
    sent = caller.client._resources.traffic.sent

    async def at_once() -> bool:
        task = asyncio.create_task(caller.client.call_utility_async("pause_scheduler", "abort"))
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert caller.begin(at_once()).result(BOUND)
    assert open_calls(caller) == 0
    assert caller.client._resources.traffic.sent == sent


@invariant(
    "I30",
    breaks=Change("engine/client/calls.py", "if future is None or future.done():", "if future is None:"),
)
def test_a_reply_in_the_same_turn_as_the_cancellation_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("asyncio", 2) as caller:
        assert isinstance(caller, LoopCaller)
        calls, client = caller.client._resources.calls, caller.client
        settle = calls.settle

        async def run() -> None:
            task = asyncio.create_task(client.call_utility_async("step_counters"))

            def cancelled_first(reply: UtilityOutput) -> bool:
                task.cancel()
                return settle(reply)

            with monkeypatch.context() as patch:
                patch.setattr(calls, "settle", cancelled_first)
                await asyncio.wait([task])
            assert task.cancelled()

        caller.begin(run()).result(BOUND)
        assert open_calls(caller) == 0
        assert caller.call("collective_rpc", "echo", ["next"]) == ["next"] * 2
        caller.serve()


@invariant(
    "I30",
    breaks=(
        Change(
            "engine/client/aio.py",
            """
            async with asyncio.timeout(timeout):
                await attachment.delivered(parcel)
                return await future
            """,
            """
            await attachment.delivered(parcel)
            async with asyncio.timeout(timeout):
                return await future
            """,
        ),
        Change(
            "engine/client/sync.py",
            "self._delivered(self._send(lambda: self._outbox.call(call_id, method, args)), deadline)",
            "self._delivered(self._send(lambda: self._outbox.call(call_id, method, args)), Deadline.never())",
        ),
    ),
)
@both_kinds
def test_a_call_times_out_although_its_large_argument_is_still_on_its_way(kind: str) -> None:
    large = np.arange(1 << 20)
    with serving(kind) as caller:
        caller.call("is_sleeping")
        caller.signal(0, signal.SIGSTOP)
        assert isinstance(fails(caller.begin_call("collective_rpc", "echo", [large], timeout=0.05)), UtilityTimeout)
        assert open_calls(caller) == 0
        caller.signal(0, signal.SIGCONT)
        assert caller.call("collective_rpc", "echo", [large]) == [Array.of(large)]


@invariant("I30")
@both_kinds
def test_death_leaves_no_call_in_the_table(kind: str, gate: Gate) -> None:
    with serving(kind, 2, _with_stuck(gate), keep=[gate.fileno()]) as caller:
        given_up = caller.begin_call("collective_rpc", "stuck", timeout=0.05)
        pending = caller.begin_call("step_counters")
        assert isinstance(fails(given_up), UtilityTimeout)
        assert open_calls(caller) == 1
        caller.signal(1, signal.SIGKILL)
        assert dies(pending) is caller.client.dead
        assert open_calls(caller) == 0


def _with_stuck(gate: Gate) -> Any:
    """Rank 1 stays in the worker method `stuck` until the gate is open."""

    def before(role: str) -> None:
        def stuck(core: Any) -> str:
            if role == "dp0.rank1":
                gate.wait()
            return "late"

        WORKER_METHODS.register(stuck)

    return before


# ---- I31 ----


@invariant(
    "I31",
    breaks=(
        Change("engine/core.py", "value, error = attempt(run)", "value, error = run(), None"),
        Change("engine/core.py", "require_sendable(value)", "pass"),
        Change("engine/utilities.py", 'return f"Call to {method} method failed: {text}"', "return text"),
    ),
    kin=("I33",),
)
@both_kinds
def test_a_call_that_fails_says_what_and_why_and_the_engine_goes_on(kind: str) -> None:
    def before(role: str) -> None:
        def broken(core: Any) -> None:
            raise RuntimeError("it broke")

        def odd(core: Any) -> Any:
            return object()

        def broken_on_rank_1(core: Any) -> None:
            if role == "dp0.rank1":
                raise RuntimeError("it broke")

        for method in (broken, odd):
            UTILITIES.register(method)
        for method in (broken_on_rank_1, odd):
            WORKER_METHODS.register(method)

    with serving(kind, 2, before) as caller:
        for method, args, reason in (
            ("broken", (), "it broke"),
            ("odd", (), "its result cannot be sent: "),
            ("sleep", (7,), "level is 7, expected 1"),
            ("sleep", ("deep",), "level: Expected `int`, got `str`"),
            ("step_counters", (1,), "too many positional arguments"),
            ("collective_rpc", ("broken_on_rank_1",), "dp0.rank1: it broke"),
            ("collective_rpc", ("odd",), "dp0.rank0: its result cannot be sent: "),
            ("collective_rpc", ("nothing",), "no worker method nothing; there is "),
        ):
            error = fails(caller.begin_call(method, *args))
            assert error.method == method
            assert error.text.startswith(f"Call to {method} method failed: {reason}")
        assert fails(caller.begin_call("nothing")).text.startswith("no utility method nothing; there is ")
        assert fails(caller.begin_call("broken", object())).text.startswith("call to broken cannot be sent: ")
        assert open_calls(caller) == 0
        caller.serve()
        caller.client.check_health()


# ---- I32 ----


@invariant("I32", breaks=ONE_ID_FOR_ALL, kin=("I7", "I8", "I11", "I17", "I29", "I30", "I33"))
@both_kinds
def test_the_answer_to_a_collective_call_that_timed_out_is_not_taken_for_the_next(kind: str, gate: Gate) -> None:
    with serving(kind, 2, _with_stuck(gate), keep=[gate.fileno()]) as caller:
        assert isinstance(fails(caller.begin_call("collective_rpc", "stuck", timeout=0.05)), UtilityTimeout)
        call = caller.begin_call("collective_rpc", "echo", ["mine"])
        until(lambda: open_calls(caller) == 1, "the next call is on its way")
        gate.open()
        assert call.result(BOUND) == ["mine"] * 2
        for number in range(3):
            assert caller.call("collective_rpc", "echo", [number]) == [number] * 2
        caller.serve()


@invariant(
    "I32",
    breaks=Change("engine/workers.py", "raise DeadlineExceeded(late[0], cause)", "return [result]"),
    kin=("I18",),
)
@both_kinds
def test_a_collective_call_that_runs_into_the_deadline_is_the_end_of_the_engine(kind: str, gate: Gate) -> None:
    """Rank 1 lives and would answer later: nobody would know to what."""
    timeouts = Timeouts(startup=20.0, handshake=10.0, step=0.5, stall=0.2, shutdown=5.0)
    changes: dict[str, Any] = {"timeouts": timeouts, "digest_interval": 1000}
    with serving(kind, 2, _with_stuck(gate), keep=[gate.fileno()], **changes) as caller:
        error = dies(caller.begin_call("collective_rpc", "stuck"))
        assert error.culprit == "dp0.rank1"
        assert "collective call 1: no RESULT came from dp0.rank1 in 0." in error.cause
        assert dies(caller.begin_call("collective_rpc", "echo", [1])) is error
        gate.open()


# ---- I33 ----


def waiting_pause(caller: Caller) -> Call:
    """A pause that waits for what is under way; on return the engine knows of it."""
    waiting = caller.begin_call("pause_scheduler", "wait")
    until(lambda: open_calls(caller) == 1, "the call is on its way")
    while not caller.call("is_scheduler_paused"):
        pass
    return waiting


@invariant(
    "I33",
    breaks=(
        Change(
            "engine/core.py",
            "with torch.inference_mode():\n    self._run(chunks, late_aborts)\nself._reply_deferred()",
            "with torch.inference_mode():\n    self._run(chunks, late_aborts)",
        ),
        Change("engine/core.py", "self._reply_deferred()\nself._changed = True", "self._changed = True"),
        Change(
            "engine/pausing.py",
            'self.give_up("what was under way has been frozen before it was finished")',
            "pass",
        ),
    ),
    kin=("I30",),
)
@both_kinds
def test_a_deferred_result_comes_although_the_engine_goes_idle_or_is_paused(kind: str) -> None:
    with serving(kind, 2) as caller:
        caller.add("last", 100)
        waiting = waiting_pause(caller)
        caller.outputs_of("last")
        assert waiting.result(BOUND) is None
        caller.call("resume_scheduler")

        caller.add("frozen", 400)
        waiting = waiting_pause(caller)
        caller.call("pause_scheduler", "keep")
        assert fails(waiting).text == (
            "Call to pause_scheduler method failed: what was under way has been frozen before it was finished"
        )
        waiting = caller.begin_call("pause_scheduler", "wait")
        caller.abort("frozen")
        assert waiting.result(BOUND) is None
        caller.outputs_of("frozen")
        caller.call("resume_scheduler")
        caller.serve()


@invariant(
    "I33",
    breaks=Change("engine/core.py", "self.abort_all()\nself._reply_deferred()", "self.abort_all()"),
    kin=("I39",),
)
@both_kinds
@pytest.mark.parametrize("drain", [False, True])
def test_a_deferred_result_comes_although_the_engine_shuts_down(drain: bool, kind: str) -> None:
    with serving(kind, 2) as caller:
        caller.add("last", 100 if drain else 400)
        waiting = waiting_pause(caller)
        down = begin(lambda: caller.client.shutdown(drain=drain))
        if drain:
            assert waiting.result(BOUND) is None
        else:
            text = "Call to pause_scheduler method failed: the engine is shutting down"
            assert fails(waiting).text == text
        down.result(2 * BOUND)
        reason = FinishReason.LENGTH if drain else FinishReason.ABORT
        assert caller.outputs_of("last")["last"][-1].finish_reason is reason
