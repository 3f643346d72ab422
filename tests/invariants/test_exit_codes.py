"""I22: what a program makes of the death of its engine, and of an end that it was told to come to."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine import cli, printer
from engine.client import base
from engine.client.sync import SyncMPClient
from engine.llm import AsyncLLM
from engine.messages import Request, SamplingParams
from tests.engine.forks import config_for, replace
from tests.engine.narration import Narrator, TellingFactory
from tests.invariants import Change, invariant
from tests.invariants.callers import PATIENT, PROMPT
from tests.invariants.programs import Program


def serve_on_a_loop(narrator: Narrator) -> None:
    """A program that streams until it is told to end."""

    async def life() -> None:
        async with AsyncLLM(config_for(2, timeouts=PATIENT), TellingFactory(narrator, lambda role: None)) as llm:
            down: list[asyncio.Task[None]] = []
            end = lambda: down.append(asyncio.create_task(asyncio.to_thread(llm.shutdown)))  # noqa: E731
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
            async for output in llm.generate(PROMPT, SamplingParams(400)):
                narrator.say("output", output.finish_reason)

    asyncio.run(life())


def serve_by_plain_calls(narrator: Narrator) -> None:
    """The same with the other client."""
    client = SyncMPClient(config_for(2, timeouts=PATIENT), TellingFactory(narrator, lambda role: None))
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=client.shutdown).start())
    client.add_request(Request("a", PROMPT, SamplingParams(400)))
    reason = None
    while reason is None:
        for output in client.get_output().outputs:
            reason = output.finish_reason
            narrator.say("output", reason)
    client.shutdown()


def generate_text(narrator: Narrator, tokens: int = 400) -> None:
    """The command line's program."""

    def print_text(text: str) -> None:
        printer.print_text(text)
        narrator.say("output", text)

    replace(base, "SpawnFactory", lambda: TellingFactory(narrator, lambda role: None))
    replace(cli, "print_text", print_text)
    sys.argv = ["engine", "generate", "hello", "--tp", "2", "--max-tokens", str(tokens)]
    cli.run()


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Callable[[Callable[[Narrator], None]], Program]]:
    """Starts programs, and leaves none running."""
    made: list[Program] = []

    def start(main: Callable[[Narrator], None]) -> Program:
        made.append(Program(main, tmp_path))
        return made[-1]

    yield start
    for program in made:
        program.close()


@invariant(
    "I22",
    breaks=(
        Change("engine/cli.py", "_leave(str(error), 1)", "_leave(str(error), 0)"),
        Change("engine/llm.py", "raise output.with_traceback(None)", "return"),
    ),
    kin=("I1",),
)
@pytest.mark.parametrize("main", [serve_on_a_loop, serve_by_plain_calls, generate_text])
def test_a_program_whose_engine_dies_ends_with_an_error(
    main: Callable[[Narrator], None], programs: Callable[[Callable[[Narrator], None]], Program]
) -> None:
    program = programs(main)
    program.wait_for("output")
    program.signal("dp0.rank1", signal.SIGKILL)
    assert program.end() == 1
    assert "engine is dead: dp0.rank1: killed by SIGKILL" in program.said


@invariant(
    "I22",
    breaks=Change(
        "engine/rank.py",
        "except StopRequested:\n    code = ExitCode.STOPPED",
        'except StopRequested:\n    code = self._fail(ExitCode.STOPPED, self._role, "a stop was requested")',
    ),
    kin=("I17", "I37", "I39", "I41"),
)
@pytest.mark.parametrize("main", [serve_on_a_loop, serve_by_plain_calls])
def test_a_program_that_is_told_to_end_does_so_without_an_error(
    main: Callable[[Narrator], None], programs: Callable[[Callable[[Narrator], None]], Program]
) -> None:
    program = programs(main)
    program.wait_for("output")
    program.signal("program", signal.SIGTERM)
    assert program.end() == 0
    assert program.told[-1] == "output abort"
    assert program.said == ""


@invariant("I22")
def test_a_program_that_has_done_its_work_ends_without_an_error(
    programs: Callable[[Callable[[Narrator], None]], Program],
) -> None:
    program = programs(lambda narrator: generate_text(narrator, tokens=8))
    assert program.end() == 0
    assert program.said.count("\n") == 1
    assert "engine" not in program.said
