"""I41 and I42: a program ends in order when a signal tells it to, and everything it started ends when it is killed."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import zmq

from engine import __main__, cli, printer
from engine.client import base
from engine.client.aio import AsyncMPClient
from engine.client.sync import SyncMPClient
from engine.core import EngineCore
from engine.errors import ExitCode
from engine.interrupts import SIGNALS
from engine.launch import Process
from engine.model.llama import Llama
from engine.rank import RankProcess
from engine.startup import StartupLink
from tests.engine.forks import config_for, replace
from tests.engine.narration import Narrator, TellingFactory
from tests.engine.wires import Before, ahead, await_path
from tests.invariants import Change, invariant
from tests.invariants.callers import PATIENT, both_kinds, serving
from tests.invariants.instants import Instants
from tests.invariants.programs import Program
from tests.invariants.starts import LEAD, SECOND
from tests.invariants.starts import place as place
from tests.invariants.vigil import alone

INTERRUPTS = "engine/interrupts.py"
MADE = "resources = make()"
SWEPT = 'for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):'

Programs = Callable[[Callable[[Narrator], None]], Program]

IN_TIME = 8.0
"""Seconds to the end of everything, on a busy machine; without an end it would be for ever."""


@pytest.fixture
def programs(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Starts programs, and leaves none running."""
    made: list[Program] = []

    def start(main: Callable[[Narrator], None]) -> Program:
        made.append(Program(main, tmp_path_factory.mktemp("said")))
        return made[-1]

    yield start
    for program in made:
        program.close()


def generate(
    narrator: Narrator,
    *,
    tokens: int = 3,
    size: int = 1,
    before: Before = alone,
    starting: Callable[[], None] = lambda: None,
    instants: Instants | None = None,
) -> None:
    """The command line's program, as it is when Python has begun it.

    It tells its ranks, when it prints, and at its end the exit codes of its ranks. `starting` is called whenever it has
    started one.
    """

    def hooks(role: str) -> None:
        sys.settrace(None)
        before(role)

    class Factory(TellingFactory):
        def start(self, *args: Any) -> Process:
            process = super().start(*args)
            starting()
            return process

    def print_text(text: str) -> None:
        printer.print_text(text)
        narrator.say("text")

    factory = Factory(narrator, hooks)
    begun = threading.Event()

    def make_factory() -> Factory:
        begun.set()
        return factory

    def before_it_begins(number: int, frame: FrameType | None) -> None:
        if not begun.is_set():  # else all is over, and only this test has something left to tell
            __main__._exit(number, frame)

    replace(base, "SpawnFactory", make_factory)
    replace(cli, "print_text", print_text)
    for signum in SIGNALS:
        signal.signal(signum, before_it_begins)
    sys.argv = ["engine", "generate", "hello", "--tp", str(size), "--max-tokens", str(tokens)]
    if instants is not None:
        instants.begin()
    try:
        cli.run()
    finally:
        sys.settrace(None)
        narrator.say("exits", *factory.exits())


def ends(program: Program, place: Path) -> int:
    """Its exit code. It ended in time and quietly, no rank was left when it did, and no file."""
    began = time.monotonic()
    code = program.end()
    assert time.monotonic() - began < IN_TIME
    assert "Traceback" not in program.said
    assert "leaving with" not in program.said
    assert [line for line in program.told if line.startswith("exits") and "None" in line] == []
    assert os.listdir(place) == []
    return code


# ---- I41: the program ----


def sending(signum: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), signum)


@invariant("I41")
@pytest.mark.parametrize("number", range(60, 2100, 290))
def test_a_signal_is_obeyed_at_any_instant(number: int, programs: Programs, place: Path) -> None:
    """At that line of the engine's code. When the work is done, or there are not so many, the program ends as ever."""
    signalled_at(number, programs, place)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_signal_is_obeyed_at_every_instant(programs: Programs, place: Path) -> None:
    for number in range(1, 2400, 3):
        signalled_at(number, programs, place)


def signalled_at(number: int, programs: Programs, place: Path) -> None:
    signum = SIGNALS[number % 4 // 2]
    program = programs(lambda narrator: generate(narrator, instants=Instants(number, sending(signum))))
    code = ends(program, place)
    if code:
        assert code == 128 + signum
        assert program.said.endswith("engine: interrupted\n") or not program.told
    else:
        assert program.said.endswith("\n")
    program.close()


@dataclass(frozen=True)
class Moment:
    """When the program gets its signal: from itself, by what `inside` changes in it, or in an idle wait of its own.

    `before` is what makes a rank say ``held`` and stand still, so that it waits.
    """

    name: str
    inside: Callable[[Callable[[], None]], None] | None = None
    before: Callable[[Narrator], Before] = lambda narrator: alone
    exits: str = ""
    """How its ranks end, as far as it has started any."""

    def __str__(self) -> str:
        return self.name


def behind(owner: Any, name: str, chosen: Callable[..., bool] = lambda *args: True) -> Any:
    """Right behind the first such call, made by the program itself."""

    def change(act: Callable[[], None]) -> None:
        whole, program, calls = getattr(owner, name), os.getpid(), iter([True])

        def call(*args: Any, **options: Any) -> Any:
            result = whole(*args, **options)
            if os.getpid() == program and chosen(*args) and next(calls, False):
                act()
            return result

        replace(owner, name, call)

    return change


def standing(role: str, owner: type, name: str, nth: int = 1) -> Callable[[Narrator], Before]:
    """That rank stands still at that call."""

    def before(narrator: Narrator) -> Before:
        def stand() -> None:
            narrator.say("held")
            threading.Event().wait()

        return ahead(role, owner, name, stand, nth)

    return before


def is_monitor(thread: threading.Thread) -> bool:
    return thread.name == "engine-monitor"


MOMENTS = (
    Moment("the directory is made", behind(tempfile, "mkdtemp")),
    Moment("the sockets are made", behind(zmq.Context, "socket")),
    Moment("a thread is started", behind(threading.Thread, "start", is_monitor), exits="0 0"),
    Moment("it waits for HELLO", before=standing(LEAD, StartupLink, "hello"), exits="11 11"),
    Moment("it waits for a model", before=standing(SECOND, Llama, "__init__"), exits="11 11"),
    Moment("it waits for an output", before=standing(LEAD, EngineCore, "step", 3), exits="-9 -9"),
)


@invariant(
    "I41",
    breaks=(
        Change(INTERRUPTS, "loop.call_soon_threadsafe(task.cancel)", "task.cancel()"),
        Change(INTERRUPTS, "if self._heard - heard < DEAF:", "if False:"),
        Change(
            "engine/client/base.py", "with signals_wait():\n    resources = make()", "if True:\n    resources = make()"
        ),
        Change(
            "engine/client/ownership.py",
            "with signals_wait():  # a thread that nobody knows of would go on",
            "if True:",
        ),
    ),
    kin=("I34", "I37", "I38"),
)
@pytest.mark.parametrize(
    ("moment", "signum"), [pytest.param(*one, id=str(one[0])) for one in zip(MOMENTS, cycle(SIGNALS), strict=False)]
)
def test_a_signal_is_one_orderly_end_however_often_it_comes(
    moment: Moment, signum: signal.Signals, programs: Programs, place: Path
) -> None:
    def main(narrator: Narrator) -> None:
        def interrupt() -> None:
            narrator.say("held")
            os.kill(os.getpid(), signum)

        if moment.inside is not None:
            moment.inside(interrupt)
        generate(narrator, tokens=400, size=2, before=moment.before(narrator))

    program = programs(main)
    program.wait_for("held")
    if moment.inside is None:
        program.until_asleep()  # else it would look for what has come, also if nothing woke it
        program.signal("program", signum)
    while not program.is_over(0.02):
        program.signal("program", signum)
    assert ends(program, place) == 128 + signum
    assert program.said.endswith("engine: interrupted\n")
    assert program.told[-1] == f"exits {moment.exits}".rstrip()


def closing_late(narrator: Narrator, folder: Path) -> Before:
    """Rank 0 says that it is about to close all it holds, and does so when the file is there."""

    def hold() -> None:
        narrator.say("leaving")
        await_path(folder / "go")

    return ahead(LEAD, RankProcess, "_close", hold)


@invariant("I41", breaks=Change(INTERRUPTS, "if self._deferring:\n    return", "pass"))
@pytest.mark.parametrize("signum", SIGNALS)
def test_a_signal_while_the_program_ends_by_itself_changes_nothing(
    signum: signal.Signals, programs: Programs, place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("gate")
    program = programs(lambda narrator: generate(narrator, size=2, before=closing_late(narrator, folder)))
    program.wait_for("leaving")
    for _ in range(2):
        program.signal("program", signum)
    (folder / "go").touch()
    assert ends(program, place) == 0
    assert program.told[-1] == "exits 0 0"


# ---- I41: the ranks ----


@invariant("I41", breaks=Change("engine/rank.py", "signal.signal(signum, signal.SIG_IGN)", "pass"))
@both_kinds
def test_a_rank_leaves_it_to_its_program_what_a_signal_means(kind: str) -> None:
    """A Ctrl-C reaches every process of a terminal; the program may want to finish what is under way."""

    def signalled(role: str) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # a fork has the mask under which it was made
        for owner, name in ((RankProcess, "_phase"), (EngineCore, "step"), (RankProcess, "_close")):
            for signum in SIGNALS:
                ahead(role, owner, name, sending(signum))(role)

    with serving(kind, 2, before=signalled) as caller:
        caller.serve()
        for rank in (0, 1):
            for signum in SIGNALS:
                caller.signal(rank, signum)
        caller.serve()
        caller.client.shutdown()
        assert caller.factory.exits() == [ExitCode.STOPPED] * 2


# ---- I42 ----


@invariant(
    "I42",
    breaks=(
        Change("engine/lifeline.py", "self._gone = not data", "self._gone = False"),
        Change("engine/lifeline.py", "shutil.rmtree(self._remove_on_orphan, ignore_errors=True)", "pass"),
    ),
)
@pytest.mark.parametrize("number", range(450, 2100, 330))
def test_everything_ends_when_the_program_is_killed_at_any_instant(
    number: int, programs: Programs, place: Path
) -> None:
    """At that line of the engine's code, from about the start of its first rank on."""
    instants = Instants(number, sending(signal.SIGKILL))
    program = programs(lambda narrator: generate(narrator, size=2, instants=instants))
    assert program.end() in (0, -signal.SIGKILL)
    program.nobody_is_left()
    assert os.listdir(place) == [] or not program.told  # before there was a rank


@invariant("I42", breaks=Change("engine/claim.py", SWEPT, "for directory in ():"))
def test_what_a_program_leaves_that_is_killed_before_it_has_ranks_goes_with_the_next(
    programs: Programs, place: Path
) -> None:
    def main(narrator: Narrator) -> None:
        behind(zmq.Context, "socket")(sending(signal.SIGKILL))
        generate(narrator)

    assert programs(main).end() == -signal.SIGKILL
    assert len(os.listdir(place)) == 1
    with serving("plain") as caller:
        caller.serve()
    assert os.listdir(place) == []


@invariant(
    "I42",
    breaks=Change(
        "engine/launch.py", "for rank in self.all:\n    os.close(rank.lifeline)\nself.all = []", "self.all = []"
    ),
)
@both_kinds
def test_ranks_end_with_the_program_although_a_fork_of_it_lives_on(kind: str, programs: Programs, place: Path) -> None:
    """A helper as multiprocessing makes one: it has a copy of all that the program has."""

    def main(narrator: Narrator) -> None:
        make = AsyncMPClient if kind == "asyncio" else SyncMPClient
        client = make(config_for(2, timeouts=PATIENT), TellingFactory(narrator, alone))
        helper = os.fork()
        if helper == 0:
            signal.pause()
        narrator.say("process", "helper", helper)
        narrator.say("ready", client.dead)
        signal.pause()

    program = programs(main)
    program.wait_for("ready")
    program.signal("program", signal.SIGKILL)
    assert program.end(but=["helper"]) == -signal.SIGKILL
    assert os.listdir(place) == []
    program.signal("helper", signal.SIGKILL)
    program.nobody_is_left()
