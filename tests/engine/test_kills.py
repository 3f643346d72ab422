"""SIGKILL of the launcher, of rank 0 and of the last rank, in each phase of an engine's life.

Whoever dies wherever: all the others are gone within a bound, the caller has an error that names the dead, and a new
engine starts on the same paths at once. The engine runs in a process of its own, which writes what happens to a pipe;
the victim is killed at an exact place of its own code, never after a time.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import clock
from engine.core import EngineCore
from engine.errors import EngineDeadError
from engine.llm import AsyncLLM
from engine.messages import SamplingParams
from engine.parallel.group import TensorGroup
from engine.rank import RankProcess
from tests.engine.forks import ForkFactory, config_for, replace
from tests.engine.narration import Listener, Narrator, TellingFactory, in_child

PHASES = ("start", "handshake", "idle", "prefill", "decode", "shutdown")
PROMISE = 2.0
"""Seconds after a kill in which everything is gone. Asserted by the nightly test only: this is a busy machine."""

PROMPT = [1, 2, 3]


def hook(phase: str, actor: str, act: Callable[[], None]) -> Callable[[str], None]:
    """What to change in the rank `actor` so that it calls `act` when it comes to `phase` for the first time."""

    def before(role: str) -> None:
        if role != actor:
            return
        if phase == "start":
            act()
        elif phase == "handshake":
            _at(RankProcess, "_phase", act, only="join")
        elif phase in ("prefill", "decode"):
            _in_step({"prefill": 1, "decode": 3}[phase], act)
        elif phase == "shutdown":
            _at(RankProcess, "_close", act)

    return before


def _at(owner: type, name: str, act: Callable[[], None], only: str | None = None) -> None:
    """Before a method is called; `only` with that argument."""
    method = getattr(owner, name)

    def acting(self: object, argument: object) -> None:
        if only in (None, argument):
            act()
        method(self, argument)

    replace(owner, name, acting)


def _in_step(wanted: int, act: Callable[[], None]) -> None:
    """Between two collectives of the step of that number, when the other ranks are in the middle of it too."""
    steps = 0
    step, reduce = EngineCore.step, TensorGroup.all_reduce

    def counted(self: EngineCore, *args: Any) -> Any:
        nonlocal steps
        steps += 1
        return step(self, *args)

    def reduced(self: TensorGroup, tensor: Any) -> Any:
        result = reduce(self, tensor)
        if steps == wanted:
            act()
        return result

    replace(EngineCore, "step", counted)
    replace(TensorGroup, "all_reduce", reduced)


def program(narrator: Narrator, commands: int, phase: str, victim: str, size: int, directory: str) -> None:
    """The launcher's life: start, one request, idle until told to go on, another request, shutdown."""
    launcher = os.getpid()
    last = f"dp0.rank{size - 1}"
    actor = last if victim == "launcher" else victim

    def act() -> None:
        narrator.say("killing", clock.now())
        os.kill(launcher if victim == "launcher" else os.getpid(), signal.SIGKILL)

    narrator.say("process", "launcher", launcher)

    async def life() -> None:
        config = config_for(size, socket_dir=directory)
        llm = AsyncLLM(config, TellingFactory(narrator, hook(phase, actor, act)))
        try:
            async for _ in llm.generate(PROMPT, SamplingParams(5)):
                pass
            narrator.say("idle")
            await asyncio.get_running_loop().run_in_executor(None, os.read, commands, 1)
            async for _ in llm.generate(PROMPT, SamplingParams(2)):
                pass
        finally:
            llm.shutdown()

    try:
        asyncio.run(life())
        narrator.say("down")
    except EngineDeadError as error:
        narrator.say("error", error.culprit, error.cause)


def launch(phase: str, victim: str, size: int, directory: str) -> tuple[int, int, Listener]:
    """Fork the launcher. Returns its pid, the pipe that lets it go on from idle, and what it says."""
    narration_read, narration_write = os.pipe()
    commands_read, commands_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        in_child(
            lambda: program(Narrator(narration_write), commands_read, phase, victim, size, directory),
            keep=(narration_write, commands_read),
        )
    os.close(narration_write)
    os.close(commands_read)
    return pid, commands_write, Listener(narration_read)


def kill_and_watch(phase: str, victim: str, size: int, directory: str) -> tuple[str, float]:
    """One kill. Returns what the caller was told (empty for a dead caller) and how long the others outlived it."""
    pid, commands, listener = launch(phase, victim, size, directory)
    try:
        if phase == "idle":
            assert listener.wait_for("idle")
            died = clock.now()
            signal.pidfd_send_signal(listener.pidfds[victim], signal.SIGKILL)
        else:
            if phase == "shutdown":
                assert listener.wait_for("idle")
                os.write(commands, b"!")
            died = float(listener.wait_for("killing").split()[1])
        if victim == "launcher":
            # Only the ranks are left, and nobody tells them anything.
            assert listener.wait_until_gone([f"dp0.rank{rank}" for rank in range(size)])
            return "", clock.now() - died
        assert listener.wait_until_gone([role for role in listener.pidfds if role != "launcher"])
        lasted = clock.now() - died
        if phase == "idle":
            os.write(commands, b"!")
        told = listener.wait_for("down" if phase == "shutdown" else "error")
        assert listener.wait_until_gone(["launcher"])
        return told, lasted
    finally:
        os.close(commands)
        os.waitpid(pid, 0)
        listener.close()


async def served(directory: str, size: int, factory: ForkFactory) -> int:
    async with AsyncLLM(config_for(size, socket_dir=directory), factory) as llm:
        return len([output async for output in llm.generate(PROMPT, SamplingParams(2))])


def cases() -> list[Any]:
    return [
        pytest.param(phase, victim, size, id=f"{victim}-{phase}-tp{size}")
        for size in (2, 4)
        for victim in ("launcher", "dp0.rank0", f"dp0.rank{size - 1}")
        for phase in PHASES
    ]


@pytest.mark.parametrize(("phase", "victim", "size"), cases())
def test_a_kill_in_any_phase_ends_everything_and_tells_the_caller(
    phase: str, victim: str, size: int, tmp_path: Path, factory: ForkFactory
) -> None:
    told, _ = kill_and_watch(phase, victim, size, str(tmp_path))
    if victim != "launcher" and phase != "shutdown":
        assert told.split(" ")[:2] == ["error", victim]
        assert "SIGKILL" in told
    assert asyncio.run(served(str(tmp_path), size, factory)) == 2
    assert os.listdir(tmp_path) == []


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_everything_is_gone_within_the_promised_time_after_any_kill(tmp_path: Path) -> None:
    """36 kills, one after another on an otherwise quiet machine; `-s` shows each."""
    late = {}
    for case in cases():
        phase, victim, size = case.values
        _, lasted = kill_and_watch(phase, victim, size, str(tmp_path))
        print(f"{case.id}: {lasted:.2f} s")
        if lasted > PROMISE:
            late[case.id] = lasted
    assert late == {}
