"""A rank's ties to its launcher: the lifeline it listens to, the report it writes.

The main thread's waits all end here, so this is also where a rank listens to its peers while it waits for something
else: see :class:`Ear`.

The lifeline is a pipe whose write end only the launcher holds. A line on it is a :class:`engine.messages.Notice`; its
end means that the launcher is gone. Two parties watch it. The main thread polls it in its idle waits and reads it
between the slices of longer ones: it leaves by itself, closing what it holds. A daemon thread named ``lifeline`` is the
net for a main thread that is stuck where Python cannot reach it (gloo's rendezvous, a wait without slices): it gives
the main thread a short grace, then reports and ends the process. If the thread itself fails, the process ends too: a
rank that nobody watches must not go on.

The thread must not take a notice away from the main thread, which may be asleep in a poll on the same pipe: it only
sees that something is there, reads it itself when a grace is over, and then wakes the main thread by other means.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import threading
from collections import deque
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

STOP_SLICE = 0.25
"""Seconds between two looks at the lifeline while an orderly stop takes its time."""

LAST_ANSWERS = 0.5
"""Seconds of a draining stop's time that are kept for telling the clients what was not finished."""

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
    """The rank's end of the lifeline.

    `role` is the rank's. `startup` bounds everything until :meth:`ready`; `stop_grace` is the seconds for a stop that
    names no limit of its own.
    """

    def __init__(
        self,
        fd: int,
        reporter: Reporter,
        *,
        role: str,
        startup: Deadline,
        stop_grace: float,
        remove_on_orphan: str | None,
    ) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._reporter = reporter
        self._role = role
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
        self._stop: Notice | None = None
        self._stop_until = Deadline.never()
        self._said = 0
        self._fail: Notice | None = None
        self._departed: deque[int] = deque()
        self._wake = os.eventfd(0)
        self._nudge = os.eventfd(0, os.EFD_NONBLOCK)
        self._phase = "start"
        self._leaving: ExitCode | None = None
        self._ears: list[Ear] = []
        threading.Thread(target=self._run, name="lifeline", daemon=True).start()

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

    def departed(self) -> list[int]:
        """The clients that have left since the last call, by index."""
        self._read()
        clients = []
        while self._departed:
            clients.append(self._departed.popleft())
        return clients

    @property
    def draining(self) -> bool:
        """Whether a stop was asked that lets what is under way come to its end, and there is time left for it."""
        return self._stop is not None and self._stop.drain and not self.drain_until.expired()

    @property
    def drain_until(self) -> Deadline:
        """When the time for what is under way is over, and the rest is for the last answers; never without a stop."""
        kept = 0.0 if self._stop is None else min(LAST_ANSWERS, self._limit_of(self._stop) / 2)
        return self._stop_until.later_by(-kept)

    @property
    def said(self) -> int:
        """The number of the last message that client 0 had sent when the stop was ordered; 0 without a stop."""
        return self._said

    def attach(self, ear: Ear) -> None:
        """Let every :meth:`check` and every wait listen to `ear` as well."""
        self._ears.append(ear)

    def wait(
        self,
        sockets: Sequence[zmq.Socket[bytes]],
        deadline: Deadline,
        *,
        flag: int = zmq.POLLIN,
        stop: bool = True,
        departures: bool = False,
    ) -> bool:
        """Wait until one of `sockets` is readable (or writable, by `flag`) or the deadline has passed; True if one is.

        With `departures` it also ends, as False, when there are clients that :meth:`departed` would tell. Raises as
        :meth:`check` as soon as the lifeline or an ear says so. A ready socket comes first, so that what rank 0 said
        before it left is still heard; an ear whose socket is waited for is the caller's to read.
        """
        poller = zmq.Poller()
        poller.register(self.fd, zmq.POLLIN)
        poller.register(self._nudge, zmq.POLLIN)
        ears = [ear for ear in self._ears if ear.socket not in sockets]
        for ear in ears:
            poller.register(ear.socket, zmq.POLLIN)
        for socket in sockets:
            poller.register(socket, flag)
        while True:
            if any(ready(socket, flag) for socket in sockets):
                return True
            self._check(ears, stop)
            if departures and self._departed:
                return False
            events = dict(poller.poll(deadline.remaining_ms()))
            if any(socket in events for socket in sockets):
                return True
            if self._nudge in events:
                os.eventfd_read(self._nudge)
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
        if stop and self._stop is not None:
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
                self._take(msgspec.json.decode(line, type=Notice))
        if threading.current_thread() is threading.main_thread() and self._must_leave:
            with self._changed:
                self._noticed = True
                self._changed.notify_all()

    def _take(self, notice: Notice) -> None:
        if notice.notice == "gone":
            self._departed.append(notice.client)
        elif notice.notice == "stop":
            # A later one can hurry an earlier one, never make it longer or kinder.
            until = Deadline.after(self._limit_of(notice))
            if self._stop is None or self._stop.drain:
                self._stop = notice
            self._stop_until = until.sooner(self._stop_until)
            self._said = max(notice.said, self._said)
        elif self._fail is None:
            self._fail = notice

    def _limit_of(self, stop: Notice) -> float:
        return self._stop_grace if stop.limit is None else stop.limit

    @property
    def _failing(self) -> bool:
        return self._gone or self._fail is not None

    @property
    def _must_leave(self) -> bool:
        return self._failing or self._stop is not None

    # ---- the watching thread ----

    def _run(self) -> None:
        try:
            self._watch()
        except BaseException as error:
            cause = f"its lifeline thread failed: {type(error).__name__}: {error}"
            self._leave(ExitCode.OWN_FAILURE, self._role, cause)

    def _watch(self) -> None:
        while not self._must_leave:
            if not self._wait_for_news():
                self._leave(ExitCode.DEADLINE, "", f"start-up deadline passed in phase {self._phase}")
            self._pick_up()
        if not self._failing:
            self._grant_stop()
        if self._failing:
            self._grant_failure()
        if self._gone:
            self._leave(ExitCode.LAUNCHER_GONE, "", "the launcher is gone")
        elif self._fail is not None:
            self._leave(ExitCode.PEER_FAILED, self._fail.culprit, self._fail.cause)
        else:
            self._leave(ExitCode.STOPPED, "", "stopped by the lifeline thread")

    def _pick_up(self) -> None:
        """Something is on the lifeline: give the main thread time to read it, then read what it has not."""
        with self._changed:
            self._changed.wait_for(lambda: self._noticed or self._native, timeout=PICKUP_GRACE)
        self._read()
        os.eventfd_write(self._nudge, 1)

    def _grant_stop(self) -> None:
        """Give the main thread the time of an orderly stop, unless the engine fails after all."""
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        native_until = Deadline.after(NATIVE_STOP_GRACE)
        while not self._failing:
            with self._changed:
                draining = self._stop is not None and self._stop.drain
                until = self._stop_until if draining or not self._native else native_until.sooner(self._stop_until)
                if until.expired():
                    return
                self._changed.wait(until.sooner(Deadline.after(STOP_SLICE)).remaining())
            if poller.poll(0):
                self._pick_up()

    def _grant_failure(self) -> None:
        """Give the main thread :data:`LEAVE_GRACE`, unless it is where it cannot be reached."""
        deadline = Deadline.after(LEAVE_GRACE)
        with self._changed:
            while not deadline.expired() and not self._native:
                self._changed.wait(deadline.remaining())

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
        try:
            if code is not ExitCode.STOPPED:
                self._reporter.send(FailedReport(code, culprit, cause))
            if code is ExitCode.LAUNCHER_GONE:
                self.clear_orphaned()
        finally:
            os._exit(code)

    def clear_orphaned(self) -> None:
        """Remove the run's private directory: with the launcher gone nobody else will."""
        if self._remove_on_orphan is not None:
            shutil.rmtree(self._remove_on_orphan, ignore_errors=True)
