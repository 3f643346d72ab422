"""I20 and I21: the dead frame is told apart from data, and a death from what it looks like at first."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
import pytest

import engine.client.aio
import engine.client.sync
from engine.codec import Array, Encoder
from engine.core import EngineCore
from engine.messages import ENGINE_CORE_DEAD, Request, SamplingParams
from engine.ports import Port, Ports
from tests.engine.forks import replace
from tests.engine.wires import ahead, all_of
from tests.invariants import Change, invariant
from tests.invariants.callers import BOUND, PROMPT, Caller, LoopCaller, PlainCaller, both_kinds, dies, serving, until
from tests.invariants.gates import Gate
from tests.invariants.vigil import LEAD, vigil

RECEIVING, AIO, SYNC = "engine/client/receiving.py", "engine/client/aio.py", "engine/client/sync.py"
ONE_WHOLE_FRAME = "if len(frames) == 1 and frames[0] == ENGINE_CORE_DEAD:"
KIN = ("I5", "I12", "I13")


def taken_for_dead(condition: str) -> Change:
    """The client takes other messages for the dead frame, or none."""
    return Change(RECEIVING, ONE_WHOLE_FRAME, f"if {condition}:")


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.close()


# ---- what it is ----


def every_array_a_frame(role: str) -> None:
    """Rank 0 puts even the smallest array into a frame of its own."""
    make = Port.__init__

    def init(self: Port, *args: Any) -> None:
        make(self, *args)
        self._encoder = Encoder(0)

    replace(Port, "__init__", init)


@invariant(
    "I20",
    breaks=(
        taken_for_dead("ENGINE_CORE_DEAD in frames"),
        taken_for_dead("ENGINE_CORE_DEAD in frames[0]"),
        taken_for_dead("frames[-1] == ENGINE_CORE_DEAD"),
    ),
    kin=KIN,
)
@both_kinds
def test_the_bytes_of_the_dead_frame_in_a_body_or_as_another_frame_are_data(kind: str) -> None:
    with serving(kind, before=every_array_a_frame) as caller:
        alone, within = (np.frombuffer(content, np.uint8) for content in (ENGINE_CORE_DEAD, ENGINE_CORE_DEAD * 100))
        for value in (ENGINE_CORE_DEAD.decode(), {ENGINE_CORE_DEAD.decode(): None}):
            assert caller.call("collective_rpc", "echo", [value]) == [value]
        for array in (alone, within):
            assert caller.call("collective_rpc", "echo", [array]) == [Array.of(array)]
        caller.serve(ENGINE_CORE_DEAD.decode())


@invariant(
    "I20",
    breaks=(
        taken_for_dead("frames[0] == ENGINE_CORE_DEAD"),
        taken_for_dead("frames[0].startswith(ENGINE_CORE_DEAD)"),
        taken_for_dead("ENGINE_CORE_DEAD.startswith(frames[0])"),
    ),
    kin=KIN,
)
@both_kinds
@pytest.mark.parametrize(
    "frames",
    [
        [ENGINE_CORE_DEAD, b"more"],
        [ENGINE_CORE_DEAD, ENGINE_CORE_DEAD],
        [ENGINE_CORE_DEAD + b"!"],
        [ENGINE_CORE_DEAD[:-1]],
    ],
    ids=["with another frame", "twice", "longer", "shorter"],
)
def test_more_or_less_than_the_dead_frame_is_a_message_that_cannot_be_read(kind: str, frames: list[bytes]) -> None:
    def say(ports: Ports) -> None:
        ports._ports[0].output.send_multipart(frames)

    with vigil(kind, say) as watch:
        reader = watch.caller.begin_read()
        watch.go_on()
        error = dies(reader)
        assert error.culprit == LEAD
        assert "cannot be read" in error.cause


def fall_silent(ports: Ports) -> NoReturn:
    """Rank 0 sends its dead frame and neither leaves nor says why."""
    ports.send_dead()
    while True:
        threading.Event().wait()


@invariant(
    "I20",
    breaks=taken_for_dead("frames == [ENGINE_CORE_DEAD, ENGINE_CORE_DEAD]"),
    kin=(*KIN, "I21", "I17", "I18", "I32"),
)
@both_kinds
def test_the_dead_frame_alone_is_a_death_although_nobody_ever_tells_its_cause(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (engine.client.aio, engine.client.sync):
        monkeypatch.setattr(module, "CAUSE_LIMIT", 0.1)
    with vigil(kind, fall_silent) as watch:
        reader = watch.caller.begin_read()
        watch.go_on()
        error = dies(reader)
        assert (error.culprit, error.cause) == (LEAD, "it sent its dead frame")
        watch.caller.factory.kill()


# ---- what it came of ----


def over(caller: Caller) -> bool:
    """Whether the receiver has read the dead frame."""
    if isinstance(caller, PlainCaller):
        return caller.client._receiver._reception.over
    assert isinstance(caller, LoopCaller)
    attachment = caller.client._attachment
    return attachment is not None and attachment._reception.over


@invariant(
    "I21",
    breaks=(
        Change(
            AIO,
            "# The dead frame, or an error that is latched by now: the cause is the monitor's to tell.\n"
            "await self._await_cause()",
            "",
        ),
        Change(SYNC, "if not self._resources.latch.wait(CAUSE_LIMIT):", "if not self._resources.latch.wait(0):"),
    ),
    kin=(*KIN, "I17", "I18", "I32"),
)
@both_kinds
def test_a_dead_frame_that_comes_before_its_cause_waits_for_it(kind: str, gate: Gate) -> None:
    def die_slowly(ports: Ports) -> NoReturn:
        ports.send_dead()
        gate.wait()
        raise ValueError("the step went wrong")

    with vigil(kind, die_slowly, keep=[gate.fileno()]) as watch:
        watch.assemble()
        watch.go_on()
        until(lambda: over(watch.caller), "the dead frame is read")
        gate.open()
        error = watch.ends()
        assert (error.culprit, error.cause) == (LEAD, "ValueError: the step went wrong")


def unreachable(caller: Caller) -> bool:
    """Whether the client can see that nobody is connected to its input any more."""
    resources = caller.client._resources
    if isinstance(caller, PlainCaller):
        with caller.client._receiver.sending:
            return not resources.reachable
    assert isinstance(caller, LoopCaller)

    async def ask() -> bool:
        return not resources.reachable

    found: bool = caller.begin(ask()).result(BOUND)
    return found


LATE: dict[str, Callable[[Caller], Any]] = {
    "request": lambda caller: caller.begin_add(Request("late", PROMPT, SamplingParams(1))),
    "utility": lambda caller: caller.begin_call("step_counters"),
}


@invariant(
    "I21",
    breaks=(
        Change(
            AIO,
            "except Unreachable as error:\n    await attachment.unreachable(error)\n    return",
            "except Unreachable:\n    raise",
        ),
        Change(
            SYNC, "self._resources.latch.wait(CAUSE_LIMIT)\nself._resources.die(error)", "self._resources.die(error)"
        ),
    ),
    kin=(*KIN, "I37"),
)
@both_kinds
@pytest.mark.parametrize("call", LATE)
def test_what_cannot_be_sent_any_more_is_told_the_cause_and_not_the_error_of_the_socket(
    kind: str, call: str, gate: Gate
) -> None:
    def leave_slowly(ports: Ports) -> NoReturn:
        ports._ports[0].input.close(linger=0)
        gate.wait()
        raise ValueError("the step went wrong")

    with vigil(kind, leave_slowly, keep=[gate.fileno()]) as watch:
        watch.go_on()
        until(lambda: unreachable(watch.caller), "rank 0 is not connected any more")
        late = LATE[call](watch.caller)
        until(lambda: len(watch.caller.client._resources.owed) == 2 or call == "utility", "it is tried")
        assert watch.caller.client.dead is None
        gate.open()
        error = dies(late)
        assert (error.culprit, error.cause) == (LEAD, "ValueError: the step went wrong")
        assert error is watch.caller.client.dead


def speak(role: str) -> None:
    """What that rank logs goes to where its standard error really is, whatever pytest has made of that."""
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)


def fail() -> NoReturn:
    raise ValueError("the step went wrong")


@invariant(
    "I21",
    breaks=Change("engine/rank.py", 'self._log.error("failed", exc_info=True)', "pass"),
)
@both_kinds
@pytest.mark.parametrize("victim", ["dp0.rank0", "dp0.rank1"])
def test_the_cause_is_logged_once_with_its_place_and_told_to_all(
    kind: str, victim: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(kind, 2, all_of(speak, ahead(victim, EngineCore, "step", fail, nth=2))) as caller:
        caller.add("a", 400)
        caller.read()  # what the first step has brought
        errors = [dies(reader) for reader in [caller.begin_read() for _ in range(3)]]
        assert {(error.culprit, error.cause) for error in errors} == {(victim, "ValueError: the step went wrong")}
        until(lambda: not caller.factory.living(), "all ranks have left")
    said = capfd.readouterr().err
    assert said.count("Traceback (most recent call last)") == 1
    assert said.count(" ERROR ") == 1
    assert f" ERROR {victim}: failed" in said
    assert "never retrieved" not in said
