"""The stacks of every process of a wedge, for a person to read: Python's frames and, where possible, native ones.

They are taken with py-spy once the wedge is one, since a look at a stack stops the process for a moment. Where py-spy
cannot be used (it needs leave to trace), each process writes its own into its log when it is asked by a signal.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness.clock import now, pause, seconds_since
from harness.zygote.child import STACKS

LIMIT = 5.0
"""Seconds for one process."""

_SETTLED = 0.1


def collect(processes: Mapping[str, int], folder: Path) -> dict[str, str]:
    """The stacks of live processes (role to pid) as text; a role whose stacks cannot be had is left out.

    ``folder`` is where each process writes its log.
    """
    if not processes:
        return {}
    spy = _py_spy()
    with ThreadPoolExecutor(len(processes), thread_name_prefix="stacks") as pool:
        texts = pool.map(lambda item: _of(spy, item[1], folder / f"{item[0]}.log"), processes.items())
        return {role: text for role, text in zip(processes, texts, strict=True) if text}


def _py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _of(spy: str | None, pid: int, log: Path) -> str:
    for more in (["--native"], []) if spy is not None else ():
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            command = [str(spy), "dump", "--pid", str(pid), *more]
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
            if done.returncode == 0:
                return done.stdout
    return _own(pid, log)


def _own(pid: int, log: Path) -> str:
    """What the process itself writes when it is asked; nothing if it does not answer."""
    began = log.stat().st_size if log.exists() else 0
    try:
        os.kill(pid, STACKS)
    except OSError:
        return ""
    asked, size, grown = now(), began, now()
    while seconds_since(asked) < LIMIT:
        pause(_SETTLED / 10)
        there = log.stat().st_size if log.exists() else 0
        if there != size:
            size, grown = there, now()
        elif size > began and seconds_since(grown) > _SETTLED:
            break
    if size == began:
        return ""
    with log.open("rb") as file:
        file.seek(began)
        return file.read().decode("utf-8", "replace")
