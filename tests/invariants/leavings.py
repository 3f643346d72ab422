"""What an engine could leave behind: descriptors, threads, processes, files, shared memory."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.engine.census import Census
from tests.invariants.callers import BOUND


class Leavings:
    """All of it at one moment; temporary files are made in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before, self._others = Census.now(), _others(folder)

    def since(self) -> list[str]:
        """What is there now and was not there then."""
        now = _others(self._folder)
        return Census.now().beyond(self._before) + [now[one] for one in sorted(now.keys() - self._others.keys())]


def _others(folder: Path) -> dict[str, str]:
    """Processes below this one, the dead that nobody has reaped among them, files, and shared memory."""
    found = {}
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found[f"process {child.pid}"] = f"process {child.pid}, {child.status()}: {child.cmdline()}"
    files = [f"file {path}" for path in (*folder.rglob("*"), *Path("/dev/shm").iterdir())]
    maps = [f"memory {line}" for line in Path("/proc/self/maps").read_text().splitlines() if "nowedge" in line]
    return found | {one: one for one in (*files, *maps)}


@contextlib.contextmanager
def nothing_left(folder: Path, within: float = 0.5) -> Iterator[None]:
    """At the end of the block nothing may be there that was not there before, at once but for what is just ending."""
    before = Leavings(folder)
    yield
    deadline = time.monotonic() + within
    while left := before.since():
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.005)


def is_running(pid: int) -> bool:
    """Whether there is such a process, and not only what nobody has reaped of it."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def await_gone(pids: list[int], within: float = BOUND) -> None:
    """Return once none of these processes runs, which must be in time."""
    deadline = time.monotonic() + within
    while running := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, f"still running: {running}"
        time.sleep(0.005)


def listing(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))
