"""Programs that own an engine, forked from this process: what they say, and the code with which they end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from tests.engine.narration import Listener, Narrator
from tests.invariants.callers import BOUND

QUIET = 0.05
"""Seconds for which a thread that has nothing to do is not run."""


class Program:
    """A child that runs `main`, as an interpreter would: an exception is a traceback and exit code 1.

    `main` tells events to its narrator; what it and its ranks write to standard output and error goes into `folder`.
    """

    def __init__(self, main: Callable[[Narrator], None], folder: Path) -> None:
        read, write = os.pipe()
        self._log = folder / "said"
        self._log.touch()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            _run(main, write, self._log)
        os.close(write)
        self._pidfd = os.pidfd_open(self._pid)
        self._listener = Listener(read)

    def wait_for(self, word: str) -> None:
        """Until it has told that event."""
        assert self._listener.wait_for(word), f"it ended before {word!r}, and said: {self.said}"

    def signal(self, role: str, signum: int) -> None:
        """To one of its ranks, or to the `program` itself."""
        fd = self._pidfd if role == "program" else self._listener.pidfds[role]
        signal.pidfd_send_signal(fd, signum)

    def until_asleep(self) -> None:
        """Until its main thread has nothing to do: it sleeps, and was not run for a while."""
        began = time.monotonic()
        while True:
            before = self._look()
            time.sleep(QUIET)
            if before[0] == "S" and self._look() == before:
                return
            assert time.monotonic() - began < BOUND, f"never asleep, and said: {self.said}"

    def _look(self) -> tuple[str, str]:
        """The state of its main thread, and how often that was run."""
        thread = Path(f"/proc/{self._pid}/task/{self._pid}")
        state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
        return state, (thread / "schedstat").read_text().split()[2]

    def is_over(self, within: float) -> bool:
        """Whether it has ended, or does so in time."""
        return bool(select.select([self._pidfd], [], [], within)[0])

    def end(self, but: Sequence[str] = ()) -> int:
        """The exit code; no process that it told of is left either, but these."""
        assert self.is_over(2 * BOUND), f"still running, and said: {self.said}"
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        assert self._listener.wait_until_gone([role for role in self._listener.pidfds if role not in but])
        return code

    def nobody_is_left(self) -> None:
        """Soon nobody has the pipe any more: neither the program nor anything that it started, known or not."""
        began = time.monotonic()
        self._listener.wait_for("nothing more")
        assert time.monotonic() - began < BOUND, f"somebody is left, and said: {self.said}"

    @property
    def told(self) -> list[str]:
        """All events so far."""
        return self._listener.lines

    @property
    def said(self) -> str:
        """All of standard output and error."""
        return self._log.read_text()

    def close(self) -> None:
        """Kill what is left. Safe to call twice."""
        if self._pidfd < 0:
            return
        for fd in (self._pidfd, *self._listener.pidfds.values()):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        os.close(self._pidfd)
        self._pidfd = -1
        self._listener.close()


def _run(main: Callable[[Narrator], None], fd: int, log: Path) -> NoReturn:
    code = 1
    try:
        os.closerange(3, fd)
        os.closerange(fd + 1, 65536)
        out = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.close(out)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        main(Narrator(fd))
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
