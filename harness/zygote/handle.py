"""The harness's side of the zygote: start the process, open lanes, and never outlive it unknowingly."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

from harness.interpreter import python
from harness.zygote import wire

START_SECONDS = 120.0
"""How long the zygote may take to import what it needs, on a loaded machine."""


class ZygoteError(Exception):
    """The zygote could not start or has gone; one sentence with the end of what it printed."""


class ZygoteHandle:
    """One zygote process, which serves this process and ends with it, whatever ends this one."""

    def __init__(self, base: Path) -> None:
        self._log = base / "zygote.log"
        self._control, theirs = wire.pair()
        with theirs, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                python("harness.zygote", str(theirs.fileno()), str(base)),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._ready = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> None:
        """Returns when the zygote can fork. Raises ZygoteError."""
        if self._ready:
            return
        self._control.settimeout(START_SECONDS)
        try:
            answer, _ = wire.receive(self._control)
        except TimeoutError:
            raise ZygoteError(f"the zygote was not ready after {START_SECONDS:.0f} s") from None
        finally:
            self._control.settimeout(None)
        if isinstance(answer, wire.Refused):
            raise ZygoteError(answer.why)
        if answer is None:
            raise ZygoteError(f"the zygote ended before it was ready: {self._last_words()}")
        self._ready = True

    def lane(self) -> socket.socket:
        """A new lane's socket. Raises ZygoteError."""
        self.wait_ready()
        ours, theirs = wire.pair()
        with theirs:
            try:
                wire.send(self._control, wire.Lane(), (theirs.fileno(),))
            except OSError:
                ours.close()
                raise ZygoteError(f"the zygote is gone: {self._last_words()}") from None
        return ours

    def close(self, seconds: float = 10.0) -> None:
        """Ends the zygote, and with it every process that it started; it removes every folder of its runs."""
        self._control.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _last_words(self) -> str:
        try:
            lines = self._log.read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1] if lines else "it said nothing"
