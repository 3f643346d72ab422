"""What still runs: for tests that ask whether anything was left behind."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil


def runs(process: psutil.Process) -> bool:
    """Whether a process still runs; one that has ended and only waits to be reaped by its parent does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def command_of(process: psutil.Process) -> str:
    """The command line of a process; empty once it has ended, which it may do at any time."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def left_of(processes: Sequence[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that still run when all others have ended, or when ``seconds`` are over."""
    limit = time.monotonic() + seconds
    while (left := [process for process in processes if runs(process)]) and time.monotonic() < limit:
        time.sleep(0.01)
    return left
