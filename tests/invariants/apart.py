"""A call in a process of its own, with an end in time and nothing left running."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from tests.invariants.zygote import sweep

_SLICE_MS = 20


@dataclass(frozen=True)
class Apart:
    """How the process has ended: what it wrote, and its exit code, None if it was killed at its limit."""

    written: bytes
    code: int | None

    @property
    def why(self) -> str:
        """What there is to say of an end that was none of its own."""
        if self.code is None:
            return "hung, and was killed at its limit"
        if self.code < 0:
            return f"killed by {signal.Signals(-self.code).name}"
        return self.written.decode(errors="replace").strip() or f"the process ended with {self.code}"


def apart(call: Callable[[int], None], limit: float) -> Apart:
    """Forks and calls with a descriptor to write to; kills at the limit, in seconds.

    On return every process below this one is gone, so nothing else may be started from here. Needs a process that
    adopts orphans.
    """
    sink = os.memfd_create("invariants", os.MFD_CLOEXEC)
    try:
        pid = os.fork()
        if pid == 0:
            _in_child(call, sink)
        code = _await(pid, limit)
        sweep()
        return Apart(os.pread(sink, os.fstat(sink).st_size, 0), code)
    finally:
        os.close(sink)


def _in_child(call: Callable[[int], None], sink: int) -> NoReturn:
    code = 1
    try:
        os.setsid()
        call(sink)
        code = 0
    except BaseException as error:
        traceback.print_exc()
        with contextlib.suppress(OSError):
            os.write(sink, f"{type(error).__name__}: {error}".encode())
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _await(pid: int, limit: float) -> int | None:
    """Until that child ends, within its limit. Orphans that become ours are reaped, as the init process would."""
    deadline = time.monotonic() + limit
    pidfd = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    try:
        while time.monotonic() < deadline:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == pid:
                return os.waitstatus_to_exitcode(status)
            if not ended:
                poll.poll(_SLICE_MS)
        return None
    finally:
        os.close(pidfd)
