"""Running a whole baseline: one program in a session of its own, ended with all that it has started."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from harness.bench import BenchError
from harness.bench.baselines import processes
from harness.bench.baselines.case import GIVEN, Case, Finding
from harness.clock import now, seconds_since
from harness.interpreter import python


class Ended(Struct, frozen=True):
    """How a baseline ended: what it found, if it did, and the seconds since its program was started."""

    finding: Finding | None
    seconds: float


def run(module: str, args: Sequence[str], engine: Case, limit: float) -> Ended:
    """Runs a module as a program that tests that engine, for ``limit`` seconds at most.

    Raises BenchError if it ends in any other way than with a finding and status 1, or without one and 0.
    """
    with tempfile.TemporaryDirectory(prefix="nb-") as folder:
        began = now()
        command = python(module, *args)
        env = {**os.environ, GIVEN: engine.encode(), "TMPDIR": folder}
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command, cwd=folder, env=env, stdout=pipe, stderr=pipe, start_new_session=True
        ) as process:
            try:
                out, err = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                return Ended(None, seconds_since(began))
            finally:
                seconds = seconds_since(began)
                processes.end(process.pid)
    finding = _finding(out)
    if process.returncode != (0 if finding is None else 1):
        last = ((err + out).decode(errors="replace").strip().splitlines() or ["no output"])[-1]
        raise BenchError(f"{module} ended with exit status {process.returncode}: {last}")
    return Ended(finding, seconds)


def _finding(out: bytes) -> Finding | None:
    for line in out.splitlines():
        if line.startswith(b"{"):
            return msgspec.json.decode(line, type=Finding)
    return None
