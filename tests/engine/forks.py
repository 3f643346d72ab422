"""Engines for tests: ranks forked from this process, which has imported torch, in about 20 ms each."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import engine.rank  # noqa: F401  (a forked rank must find it imported)
from engine.config import EngineConfig, Timeouts
from engine.launch import Process, run_target

torch.set_num_threads(1)


class ForkedProcess:
    """A forked child, watched through its pidfd."""

    def __init__(self, role: str, pid: int) -> None:
        self.role = role
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)
        self._code: int | None = None

    def fileno(self) -> int:
        return self._pidfd

    def exitcode(self) -> int | None:
        if self._code is None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def send_signal(self, signum: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signum)

    def close(self) -> None:
        os.close(self._pidfd)


class ForkFactory:
    """Starts roles by forking. `before` runs in the child first, with its role: a test's own change to that process.

    `keep` are descriptors that stay open there; all others of this process are closed.
    """

    def __init__(self, before: Callable[[str], None] | None = None, keep: Sequence[int] = ()) -> None:
        self._before = before
        self._keep = keep
        self.processes: dict[str, ForkedProcess] = {}

    def start(self, role: str, target: str, args: tuple[Any, ...], fds: Sequence[int]) -> Process:
        sys.stdout.flush()
        sys.stderr.flush()
        # Duplicates, as a process factory gives them: the engine closes its own descriptors in a forked child.
        given = [os.dup(fd) for fd in fds]
        pid = os.fork()
        if pid == 0:
            self._child(role, target, args, given)
        for fd in given:
            os.close(fd)
        process = ForkedProcess(role, pid)
        self.processes[role] = process
        return process

    def living(self) -> list[str]:
        """Roles that have not ended."""
        return [role for role, process in self.processes.items() if process.exitcode() is None]

    def exits(self) -> list[int | None]:
        """Exit codes in the order of starting."""
        return [process.exitcode() for process in self.processes.values()]

    def kill(self) -> None:
        """Kill what is left."""
        for role in self.living():
            os.kill(self.processes[role].pid, signal.SIGKILL)

    def _child(self, role: str, target: str, args: tuple[Any, ...], fds: list[int]) -> None:
        code = 1
        try:
            gc.disable()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            keep = sorted({0, 1, 2, *fds, *self._keep})
            # Other ranks' lifelines must not be held open here, or they would never see their launcher's end.
            for low, high in zip(keep, [*keep[1:], 65536], strict=True):
                os.closerange(low + 1, high)
            if self._before is not None:
                self._before(role)
            code = run_target(role, target, args, fds)
        finally:
            os._exit(code)


SHORT = Timeouts.profile("short")


def config_for(tp_size: int, **changes: Any) -> EngineConfig:
    """A configuration with short deadlines, whose ranks compare every step."""
    return EngineConfig(**{"tp_size": tp_size, "timeouts": SHORT, "digest_interval": 1, **changes})


def replace(owner: object, name: str, value: object) -> None:
    """In a child: put `value` in the place of an attribute, for the rest of that process's life."""
    setattr(owner, name, value)
