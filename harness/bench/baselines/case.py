"""One case of a baseline: how the engine is started, what is asked, which process gets a signal; and its judgement."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile

import msgspec
from msgspec import Struct

from harness.bench.baselines import STARTUP, TIMEOUT, processes
from harness.clock import now, pause, seconds_since
from harness.interpreter import python

GIVEN = "NOWEDGE_BASELINE"
"""The environment variable from which a baseline learns of the engine that it tests."""

CLIENT = "client"


class Hit(Struct, frozen=True):
    """SIGKILL, or SIGSTOP for ``stop`` seconds, to the client or a rank, ``after`` seconds after the start-up."""

    victim: str
    after: float
    stop: float | None = None

    @property
    def lasts(self) -> float:
        """Seconds after the start-up at which it is over."""
        return self.after + (self.stop or 0.0)


class Case(Struct, frozen=True):
    """The engine (``bug`` is the module of a seeded bug, empty for none), ranks that start late, requests, the hit."""

    bug: str = ""
    relay: str = "pushpull"
    config: dict[str, bool | int | float | str] = {}
    tp: int = 2
    delays: dict[int, float] = {}
    requests: int = 2
    hit: Hit | None = None

    def encode(self) -> str:
        """As JSON."""
        return msgspec.json.encode(self).decode()


class Said(Struct, frozen=True):
    """What a run says when it is ready (process ids by role) and when it has ended; ``wrong`` if something is."""

    pids: dict[str, int] = {}
    wrong: str = ""


class Finding(Struct, frozen=True, tag="finding"):
    """What a baseline prints of its failing case."""

    case: Case
    wrong: str


def given() -> Case:
    """The case that this process was given, of which a baseline changes all but the engine."""
    return msgspec.json.decode(os.environ[GIVEN], type=Case)


def fails(case: Case) -> str:
    """Runs the case; what is wrong, which is printed as well, or nothing."""
    wrong = run(case)
    if wrong:
        # A line of its own: a test runner may have begun one.
        sys.stdout.write(f"\n{msgspec.json.encode(Finding(case, wrong)).decode()}\n")
        sys.stdout.flush()
    return wrong


def run(case: Case) -> str:
    """Runs the case; what is wrong, or nothing. All processes and files of the run are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="nb-") as folder:
        process = subprocess.Popen(
            python("harness.bench.baselines.engine_run", case.encode()),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": folder},
            process_group=0,
        )
        try:
            return _judged(process, case)
        finally:
            processes.end(process.pid)
            process.communicate()


def _judged(process: subprocess.Popen[bytes], case: Case) -> str:
    ready = _said(process, STARTUP)
    if ready is None:
        return f"not ready within {STARTUP:g} s" if process.poll() is None else "ended before it was ready"
    if ready.wrong:
        return ready.wrong
    began = now()
    if case.hit is not None:
        _strike(case.hit, {**ready.pids, CLIENT: process.pid})
    try:
        status = process.wait(max(0.0, TIMEOUT - seconds_since(began)))
    except subprocess.TimeoutExpired:
        return f"not over {TIMEOUT:g} s after it was ready"
    killed = case.hit is not None and case.hit.victim == CLIENT and case.hit.stop is None
    if status != 0 and not (killed and status == -signal.SIGKILL):
        last = _said(process, 0.0)
        return last.wrong if last is not None else f"ended with exit status {status}"
    while processes.living(process.pid):
        if seconds_since(began) > TIMEOUT:
            return f"processes are left {TIMEOUT:g} s after it was ready"
        pause(processes.GLANCE)
    return ""


def _strike(hit: Hit, pids: dict[str, int]) -> None:
    pause(hit.after)
    with contextlib.suppress(ProcessLookupError):
        if hit.stop is None:
            os.kill(pids[hit.victim], signal.SIGKILL)
            return
        os.kill(pids[hit.victim], signal.SIGSTOP)
        pause(hit.stop)
        os.kill(pids[hit.victim], signal.SIGCONT)


def _said(process: subprocess.Popen[bytes], within: float) -> Said | None:
    """The next thing that a run says, None if it says nothing in that many seconds."""
    if process.stdout is None or not select.select([process.stdout], [], [], within)[0]:
        return None
    # Written at once and shorter than a pipe takes at once.
    line = os.read(process.stdout.fileno(), select.PIPE_BUF)
    return msgspec.json.decode(line, type=Said) if line else None
