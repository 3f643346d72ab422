"""A rank's ties to its launcher: the lifeline it listens to, the report it writes.

The main thread's waits all end here, so this is also where a rank listens to its peers while it waits for something
else: see :class:`Ear`.

The lifeline is a pipe whose write end only the launcher holds. A line on it is a :class:`engine.messages.Notice`; its
end means that the launcher is gone. Two parties watch it. The main thread polls it in its idle waits and reads it
between the slices of longer ones: it leaves by itself, closing what it holds. A daemon thread named ``lifeline`` is the
net for a main thread that is stuck where Python cannot reach it (gloo's rendezvous, a wait without slices): it gives
the main thread a short grace, then reports and ends the process.

The thread must not take the notice away from the main thread, which may be asleep in a poll on the same pipe: it only
sees that something is there, and reads it itself when the grace is over.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import threading
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec
import zmq

from engine.clock import Deadline
from engine.errors import ExitCode, LauncherGone, PeerFailed, StopRequested
from engine.messages import FailedReport, Notice, Report
from engine.sockets import ready

PICKUP_GRACE = 0.5
"""Seconds for the main thread to notice by itself that something came down the lifeline."""

LEAVE_GRACE = 1.0
"""Seconds for the main thread to close what it holds once it has noticed, when the engine is failing."""

NATIVE_STOP_GRACE = 0.25
"""Seconds for a main thread inside an unbounded wait to come out of it when an orderly stop is asked."""


LAST_WORD = 0.25
"""Seconds for others to say why a peer has gone, when all that this rank knows is that it has."""


class Ear(Protocol):
    """Where else a rank hears that the engine fails: rank 0 over `control`, the others over `relay`."""

    @property
    def socket(self) -> zmq.Socket[bytes]: ...

    def listen(self) -> None:
        """Take in what has come, without blocking; raise if it says that the engine fails. Main thread only."""


class Reporter:
    """Writes report lines. A line is far shorter than PIPE_BUF, so lines of two threads do not mix."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def send(self, report: Report) -> None:
        """Tell the launcher; harmless if it is gone."""
        with contextlib.suppress(OSError):
            os.write(self._fd, msgspec.json.encode(report) + b"\n")


class Lifeline:
    """The rank's end of the lifeline. `startup` bounds everything until :meth:`ready`; `stop_grace` is for a stop."""

    def __init__(
        self, fd: int, reporter: Reporter, *, startup: Deadline, stop_grace: float, remove_on_orphan: str | None
    ) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._reporter = reporter
        self._startup = startup
        self._stop_grace = stop_grace
        self._remove_on_orphan = remove_on_orphan
        self._buffer = b""
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._noticed = False
        self._native = False
        self._ready = False
        self._gone = False
        self._stop = False
        self._fail: Notice | None = None
        self._wake = os.eventfd(0)
        self._phase = "start"
        self._leaving: ExitCode | None = None
        self._ears: list[Ear] = []
        threading.Thread(target=self._watch, name="lifeline", daemon=True).start()

    # ---- the main thread's side ----

    def check(self, *, stop: bool = True) -> None:
        """Read what has come, and leave if it says so.

        Raises :class:`LauncherGone`, :class:`PeerFailed`, or, if `stop` (a caller inside a step passes False),
        :class:`StopRequested`; and whatever an attached ear raises.
        """
        self._check(self._ears, stop)

    @property
    def orphaned(self) -> bool:
        """Whether the launcher is gone. A peer may have heard of it first, and said so."""
        self._read()
        return self._gone

    def attach(self, ear: Ear) -> None:
        """Let every :meth:`check` and every wait listen to `ear` as well."""
        self._ears.append(ear)

    def wait(
        self, sockets: Sequence[zmq.Socket[bytes]], deadline: Deadline, *, flag: int = zmq.POLLIN, stop: bool = True
    ) -> bool:
        """Wait until one of `sockets` is readable (or writable, by `flag`) or the deadline has passed; True if one is.

        Raises as :meth:`check` as soon as the lifeline or an ear says so. A ready socket comes first, so that what rank
        0 said before it left is still heard; an ear whose socket is waited for is the caller's to read.
        """
        poller = zmq.Poller()
        poller.register(self.fd, zmq.POLLIN)
        ears = [ear for ear in self._ears if ear.socket not in sockets]
        for ear in ears:
            poller.register(ear.socket, zmq.POLLIN)
        for socket in sockets:
            poller.register(socket, flag)
        while True:
            if any(ready(socket, flag) for socket in sockets):
                return True
            self._check(ears, stop)
            events = dict(poller.poll(deadline.remaining_ms()))
            if any(socket in events for socket in sockets):
                return True
            if deadline.expired():
                return False

    def last_word(self) -> None:
        """Give those who know why a peer has failed :data:`LAST_WORD` seconds to say so; what they say is raised."""
        self.wait((), Deadline.after(LAST_WORD), stop=False)

    @contextlib.contextmanager
    def native(self) -> Iterator[None]:
        """Declare a section that Python cannot interrupt: inside it the main thread is given no grace."""
        self._set_native(True)
        try:
            yield
        finally:
            self._set_native(False)

    def phase(self, phase: str) -> None:
        """Name what the rank is doing, for the report if it never gets past it."""
        self._phase = phase

    def leave(self, code: ExitCode) -> None:
        """The main thread is on its way out with `code`; if it gets stuck, the thread ends the process with that."""
        self._leaving = code

    def ready(self) -> None:
        """Start-up is over: from now on the lifeline is watched without a deadline."""
        self._ready = True
        os.eventfd_write(self._wake, 1)

    # ---- both sides ----

    def _check(self, ears: Sequence[Ear], stop: bool) -> None:
        self._read()
        if self._gone:
            raise LauncherGone
        for ear in ears:  # a peer's word comes first: it is the more exact one
            ear.listen()
        if self._fail is not None:
            raise PeerFailed(self._fail.culprit, self._fail.cause)
        if stop and self._stop:
            raise StopRequested

    def _set_native(self, native: bool) -> None:
        with self._changed:
            self._native = native
            self._changed.notify_all()

    def _read(self) -> None:
        with self._lock:
            while not self._gone:
                try:
                    data = os.read(self.fd, 65536)
                except BlockingIOError:
                    break
                self._buffer += data
                self._gone = not data
            *lines, self._buffer = self._buffer.split(b"\n")
            for line in lines:
                notice = msgspec.json.decode(line, type=Notice)
                if notice.notice == "stop":
                    self._stop = True
                elif self._fail is None:
                    self._fail = notice
        if threading.current_thread() is threading.main_thread() and (self._gone or self._stop or self._fail):
            with self._changed:
                self._noticed = True
                self._changed.notify_all()

    # ---- the watching thread ----

    def _watch(self) -> None:
        if not self._wait_for_news():
            self._leave(ExitCode.DEADLINE, "", f"start-up deadline passed in phase {self._phase}")
        with self._changed:
            self._changed.wait_for(lambda: self._noticed or self._native, timeout=PICKUP_GRACE)
        self._read()
        code, grace = ExitCode.PEER_FAILED, LEAVE_GRACE
        if self._stop and not self._gone and self._fail is None:
            code, grace = ExitCode.STOPPED, self._stop_grace
        native_grace = NATIVE_STOP_GRACE if code is ExitCode.STOPPED else 0.0
        deadline = Deadline.after(grace)
        native_until = Deadline.after(native_grace)
        with self._changed:
            while not deadline.expired():
                if self._native and native_until.expired():
                    break
                limit = native_until if self._native else deadline
                self._changed.wait(limit.remaining())
        if self._gone:
            self._leave(ExitCode.LAUNCHER_GONE, "", "the launcher is gone")
        elif self._fail is not None:
            self._leave(ExitCode.PEER_FAILED, self._fail.culprit, self._fail.cause)
        else:
            self._leave(ExitCode.STOPPED, "", "stopped by the lifeline thread")

    def _wait_for_news(self) -> bool:
        """Sleep until something is on the lifeline (True) or start-up has run out (False)."""
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        while not self._ready:
            events = dict(poller.poll(self._startup.remaining_ms()))
            if self.fd in events:
                return True
            if not events and self._startup.expired() and not self._ready:
                with self._changed:
                    self._changed.wait_for(lambda: self._ready or self._native, timeout=LEAVE_GRACE)
                if not self._ready:
                    return False
        poller.unregister(self._wake)
        poller.poll()
        return True

    def _leave(self, code: ExitCode, culprit: str, cause: str) -> None:
        if self._leaving is not None:
            os._exit(self._leaving)
        if code is not ExitCode.STOPPED:
            self._reporter.send(FailedReport(code, culprit, cause))
        if code is ExitCode.LAUNCHER_GONE:
            self.clear_orphaned()
        os._exit(code)

    def clear_orphaned(self) -> None:
        """Remove the run's private directory: with the launcher gone nobody else will."""
        if self._remove_on_orphan is not None:
            shutil.rmtree(self._remove_on_orphan, ignore_errors=True)
