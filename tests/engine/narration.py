"""A launcher in a process of its own, which tells a test what happens to it, so that the test may kill it."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from engine import clock
from engine.launch import Process
from tests.engine.forks import ForkFactory

PATIENCE = 15.0


class Narrator:
    """The engine's side of the pipe: one line per event."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def say(self, *words: object) -> None:
        os.write(self.fd, (" ".join(str(word) for word in words) + "\n").encode())


class Listener:
    """The test's side of the pipe: lines as they come, and the processes that they tell of."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = b""
        self.lines: list[str] = []
        self.pidfds: dict[str, int] = {}

    def wait_for(self, word: str) -> str:
        """The first line that begins with `word`; empty if the pipe ends before."""
        deadline = clock.Deadline.after(PATIENCE)
        while True:
            for line in self.lines:
                if line.startswith(word):
                    return line
            if not self._read(deadline):
                return ""

    def wait_until_gone(self, roles: Sequence[str]) -> bool:
        """Whether these processes end in time; those that are not known by then never started."""
        deadline = clock.Deadline.after(PATIENCE)
        while self._read(clock.Deadline.after(0)):
            pass
        for fd in [self.pidfds[role] for role in roles if role in self.pidfds]:
            if not select.select([fd], [], [], deadline.remaining())[0]:
                return False
        return True

    def close(self) -> None:
        for fd in (self._fd, *self.pidfds.values()):
            os.close(fd)

    def _read(self, deadline: clock.Deadline) -> bool:
        if not select.select([self._fd], [], [], deadline.remaining())[0]:
            return False
        data = os.read(self._fd, 65536)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._take(line.decode())
        return bool(data)

    def _take(self, line: str) -> None:
        self.lines.append(line)
        word, *rest = line.split(" ")
        if word == "process":
            with contextlib.suppress(ProcessLookupError):
                self.pidfds[rest[0]] = os.pidfd_open(int(rest[1]))


class TellingFactory(ForkFactory):
    """Says who was started, at once: a launcher that dies in the middle cannot."""

    def __init__(self, narrator: Narrator, before: Callable[[str], None]) -> None:
        super().__init__(before, keep=[narrator.fd])
        self._narrator = narrator

    def start(self, role: str, target: str, args: tuple[Any, ...], fds: Sequence[int]) -> Process:
        process = super().start(role, target, args, fds)
        self._narrator.say("process", role, process.pid)
        return process


def in_child(run: Callable[[], None], keep: Sequence[int]) -> NoReturn:
    """In a forked child: close all descriptors but these, run, and end the process."""
    code = 1
    try:
        kept = sorted({0, 1, 2, *keep})
        for low, high in zip(kept, [*kept[1:], 65536], strict=True):
            os.closerange(low + 1, high)
        run()
        code = 0
    finally:
        os._exit(code)
