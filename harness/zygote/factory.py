"""The launcher's side: the engine's process factory, answered by the zygote instead of by a new interpreter."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
from collections.abc import Sequence

from harness.clock import now
from harness.seam.site import active
from harness.zygote import wire


class ZygoteProcess:
    """One process that the zygote started for this launcher. Its status pipe is readable once it has ended."""

    def __init__(self, role: str, pid: int, pidfd: int, status: int) -> None:
        self.role, self.pid = role, pid
        self._pidfd, self._status = pidfd, status
        self._code: int | None = None
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """The descriptor to poll: readable, or hung up, when the process has ended."""
        return self._status

    def exitcode(self) -> int | None:
        """The exit status (negative: killed by that signal), None while the process runs. Never blocks."""
        with self._lock:
            if self._code is None and self._status >= 0 and _readable(self._status):
                data = os.read(self._status, 4)
                # No status on a closed pipe: the zygote itself is gone, and with it every child of it.
                self._code = int.from_bytes(data, "little", signed=True) if len(data) == 4 else -int(signal.SIGKILL)
            return self._code

    def send_signal(self, signum: int) -> None:
        """Sends a signal; harmless once the process is gone."""
        with contextlib.suppress(ProcessLookupError, OSError):
            signal.pidfd_send_signal(self._pidfd, signum)

    def close(self) -> None:
        """Gives the descriptors back."""
        with self._lock:
            for fd in (self._pidfd, self._status):
                if fd >= 0:
                    os.close(fd)
            self._pidfd = self._status = -1


class ZygoteFactory:
    """Starts processes through the socket that a launcher inherited from the zygote."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)

    def start(self, role: str, target: str, args: tuple[str | int | bytes, ...], fds: Sequence[int]) -> ZygoteProcess:
        """Starts ``target`` as ``role``. Raises OSError when the zygote is gone or refuses."""
        seam = active()
        if seam is not None:
            seam.recorder.wait(now(), "zygote.start", text=role, held=True)
        try:
            wire.send(self._socket, wire.Start(role, target, list(args)), tuple(fds))
            answer, received = wire.receive(self._socket)
        finally:
            if seam is not None:
                seam.recorder.done()
        if isinstance(answer, wire.Started):
            return ZygoteProcess(answer.role, answer.pid, received[0], received[1])
        raise OSError(answer.why if isinstance(answer, wire.Refused) else "the zygote is gone")


def _readable(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))
