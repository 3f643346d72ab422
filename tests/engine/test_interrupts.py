"""Ctrl-C and SIGTERM of the real program, at any moment, once or twice: everything ends, quietly, and nothing stays."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.invariants import Change, invariant

PROMISE = 2.0
"""Seconds from the signal to the end of the last process. Asserted by the nightly test only: this is a busy machine."""
PATIENCE = 20.0

Moment = Callable[["Program"], None]


class Program:
    """`python -m engine generate` in a session of its own, so that a Ctrl-C reaches all its processes as it would."""

    def __init__(self, folder: Path, tp: int) -> None:
        command = [sys.executable, "-m", "engine", "generate", "hello", "--tp", str(tp), "--max-tokens", "400"]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(folder)},
        )
        self.family: dict[int, int] = {self.process.pid: os.pidfd_open(self.process.pid)}

    def children(self) -> int:
        """How many ranks run by now; all that were ever seen are remembered."""
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                if child.pid not in self.family:
                    self.family[child.pid] = os.pidfd_open(child.pid)
        return len(self.family) - 1

    def signal(self, signum: int) -> None:
        self.children()
        if signum == signal.SIGINT:
            os.killpg(self.process.pid, signum)
        else:
            self.process.send_signal(signum)

    def end(self) -> tuple[int, str, float]:
        """Exit code, what it said on stderr, and how long the last process took to go."""
        began = time.monotonic()
        # Through descriptors: how soon somebody reaps an orphan that has ended is not this program's business.
        for pid, fd in self.family.items():
            assert select.select([fd], [], [], PATIENCE)[0], f"still running: {pid}"
        lasted = time.monotonic() - began
        _, said = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, said.decode(), lasted

    def kill(self) -> None:
        self.children()
        for fd in self.family.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            os.close(fd)
        self.family = {}
        self.process.communicate()


def importing(program: Program) -> None:
    """Its own modules, before anything has been started: the handlers are in place once it no longer has Python's."""
    path = Path(f"/proc/{program.process.pid}/status")
    caught = 1 << (signal.SIGTERM - 1)
    while not caught & next(int(line.split()[1], 16) for line in path.read_text().splitlines() if "SigCgt" in line):
        time.sleep(0.001)


def ranks_import(program: Program) -> None:
    """The ranks are new processes that import torch: they do not listen to anything yet."""
    while program.children() < 2:
        time.sleep(0.01)


def streaming(program: Program) -> None:
    """The first text has come."""
    assert program.process.stdout is not None
    assert program.process.stdout.read(1)


MOMENTS: dict[str, Moment] = {"importing": importing, "ranks import": ranks_import, "streaming": streaming}


@contextlib.contextmanager
def running(folder: Path, tp: int = 2) -> Iterator[Program]:
    program = Program(folder, tp)
    try:
        yield program
    finally:
        program.kill()


def interrupt(folder: Path, moment: str, signum: int, times: int) -> float:
    """Seconds from the signal to the end of everything, after all that has to hold has been checked."""
    with running(folder) as program:
        MOMENTS[moment](program)
        for _ in range(times):
            program.signal(signum)
        code, said, lasted = program.end()
    assert code == 128 + signum
    assert "Traceback" not in said
    assert said.strip() in ("", "engine: interrupted"), said
    assert os.listdir(folder) == []
    return lasted


@pytest.mark.parametrize(
    ("moment", "signum", "times"),
    [
        ("importing", signal.SIGINT, 1),
        ("ranks import", signal.SIGINT, 2),
        ("streaming", signal.SIGTERM, 1),
        ("streaming", signal.SIGINT, 2),
    ],
)
def test_an_interrupt_ends_the_program_quietly_and_leaves_nothing(
    moment: str, signum: int, times: int, tmp_path: Path
) -> None:
    interrupt(tmp_path, moment, signum, times)


@invariant("I41", breaks=Change("engine/__main__.py", "signal.signal(signum, _exit)", "pass"))
def test_the_handlers_are_in_place_before_anything_is_imported() -> None:
    code = """if True:
        import os, runpy, signal, sys
        def install(*_):
            print(*sorted(set(sys.modules) - before), flush=True)
            os._exit(0)
        before, signal.signal = set(sys.modules), install
        runpy.run_module("engine", run_name="__main__", alter_sys=True)
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["engine"]


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_an_interrupt_at_any_moment_ends_everything_within_the_promised_time(tmp_path: Path) -> None:
    """All moments, both signals, once and twice, and at every 0.2 s of a start-up; `-s` shows each."""
    late: dict[tuple[str, int, int], float] = {}
    for moment in MOMENTS:
        for signum in (signal.SIGINT, signal.SIGTERM):
            for times in (1, 2):
                lasted = interrupt(tmp_path, moment, signum, times)
                print(f"{moment}, {signal.Signals(signum).name} x {times}: {lasted:.2f} s")
                if lasted > PROMISE:
                    late[moment, signum, times] = lasted
    for tick in range(25):
        with running(tmp_path) as program:
            importing(program)
            time.sleep(0.2 * tick)
            program.signal(signal.SIGINT)
            code, said, lasted = program.end()
        print(f"after {0.2 * tick:.1f} s: {lasted:.2f} s, exit code {code}")
        assert "Traceback" not in said
        assert os.listdir(tmp_path) == []
        if lasted > PROMISE:
            late["tick", tick, 1] = lasted
    assert late == {}
