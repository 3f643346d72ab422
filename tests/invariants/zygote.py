"""A process that has torch imported and nothing of the project, and forks once for each copy of the tree.

Run as a file, with ``-P`` and the modules to import as arguments. Each line on standard input is a job: a JSON object
with at least ``folder``, the copy, and ``log``, a file for what is printed. The fork imports the project from that copy
and hands the job to ``tests.invariants.session.main``, which writes its lines to our standard output; at its end comes
``{"type": "End", ...}``. When standard input closes, everything below this process is killed and it leaves.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import select
import sys
import tempfile
import time
import traceback
import types
from typing import Any

import psutil

PROJECT = ("engine", "harness", "scenarios", "tests")
"""Packages that must come from the copy."""

_PR_SET_CHILD_SUBREAPER = 36
_SLICE = 0.005


def adopt_orphans() -> None:
    """From now on whoever loses its parent below this process becomes a child of it."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def sweep() -> None:
    """Kills every process below this one, and returns when none is left, not even as a zombie."""
    while True:
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            time.sleep(_SLICE)


def serve(source: int, sink: int) -> None:
    """Runs job after job until `source` closes."""
    buffer = b""
    while data := os.read(source, 65536):
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            problem = _run(json.loads(line), source, sink)
            os.write(sink, json.dumps({"type": "End", "problem": problem}).encode() + b"\n")


def _run(job: dict[str, Any], source: int, sink: int) -> str:
    """One job in a fork. Returns what went wrong with the fork itself, or nothing."""
    pid = os.fork()
    if pid == 0:
        _child(job, source, sink)
    pidfd = os.pidfd_open(pid)
    ready = select.select([pidfd, source], [], [])[0]
    os.close(pidfd)
    if pidfd not in ready:
        raise SystemExit  # who asked is gone
    _, status = os.waitpid(pid, 0)
    sweep()
    code = os.waitstatus_to_exitcode(status)
    return f"the test run ended with {code}" if code else ""


def _child(job: dict[str, Any], source: int, sink: int) -> None:
    code = 1
    try:
        os.setsid()
        report = os.dup(sink)  # close-on-exec, like all that Python makes
        nothing = os.open(os.devnull, os.O_RDONLY)
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for fd, at in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(fd, at)
        for fd in {nothing, log, source, sink} - {0, 1, 2}:
            os.close(fd)
        _enter(job["folder"])
        main = importlib.import_module("tests.invariants.session").main
        code = main(job, report)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _enter(folder: str) -> None:
    """Makes the copy the place from which this process, and every program that it starts, imports the project."""
    os.chdir(folder)
    os.environ["PYTHONPATH"] = folder
    os.environ["TMPDIR"] = f"{folder}.t"
    os.mkdir(f"{folder}.t")
    tempfile.tempdir = None
    sys.path.insert(0, folder)
    sys.argv = ["tests.invariants"]
    # A spawned process runs its parent's main module again; this file is none that it needs.
    sys.modules["__main__"] = types.ModuleType("__main__")
    early = [name for name in sys.modules if name.partition(".")[0] in PROJECT]
    if early:
        raise RuntimeError(f"{early} were imported before the copy was entered")


def main(modules: list[str]) -> None:
    """The program."""
    adopt_orphans()
    source, sink = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # a module that prints on import must not write between our lines
    for name in modules:
        importlib.import_module(name)
    try:
        serve(source, sink)
    finally:
        sweep()


if __name__ == "__main__":
    main(sys.argv[1:])
