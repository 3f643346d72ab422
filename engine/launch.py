"""Starting rank processes and listening to them: factory, pipes, reports, exits.

Each rank gets two pipes made here: the lifeline (its write end stays with the launcher, and its end tells the rank that
the launcher is gone) and the report pipe. Death is seen through the process's exit descriptor, never by pid.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import reduction, resource_tracker
from typing import Any, Protocol, TextIO

import msgspec

from engine.clock import Deadline
from engine.config import Launch
from engine.errors import ExitCode
from engine.messages import PHASES, FailedReport, Notice, PhaseReport, ReadyReport, Report, rank_role
from engine.signals import signals_wait

RANK_TARGET = "engine.rank:rank_main"
"""What a process factory is asked to run for each rank."""

START_PHASE = PHASES[0]
"""The phase of a rank that has not reported yet: it is still importing."""

START_GRACE = 1.0
"""Seconds for a rank that has not reported yet to hear that the engine fails."""

LOST_STATUS = 256
"""The exit code of a process that has ended and whose status nobody can read: somebody else has reaped it."""

INTERRUPT_GRACE = 0.2
"""The same when the program itself gives up: nobody will ask how the rank ended."""

FOLLOW_GRACE = 0.5
"""Seconds for the ranks that rank 0 has told to leave, before the launcher tells them too."""

KILL_LIMIT = 5.0
"""Seconds for a killed process to be gone."""


class Process(Protocol):
    """A started process, as the launcher sees it."""

    role: str
    pid: int

    def fileno(self) -> int:
        """A descriptor that polls readable (or hung up) once the process has ended and its exit status is known."""

    def exitcode(self) -> int | None:
        """The exit code, negative if killed by that signal, None while it runs. Never blocks.

        :data:`LOST_STATUS` if it has ended in a way that cannot be known any more.
        """

    def send_signal(self, signum: int) -> None:
        """Send a signal; harmless if the process is gone."""

    def close(self) -> None:
        """Give back the descriptor."""


class ProcessFactory(Protocol):
    """Starts processes by the name of a function."""

    def start(self, role: str, target: str, args: tuple[str | int | bytes, ...], fds: Sequence[int]) -> Process:
        """Start a process named `role` that calls ``function(*args, fds)``.

        `target` is ``module:function``; the function gets its own numbers of duplicates of `fds`, which the caller may
        close afterwards.
        """


class SpawnFactory:
    """The default: fresh interpreters through multiprocessing's spawn method, not daemonic."""

    def __init__(self) -> None:
        # Spawning starts it when it is not there yet, and that would lift the mask under which ranks are started.
        resource_tracker.ensure_running()

    def start(self, role: str, target: str, args: tuple[str | int | bytes, ...], fds: Sequence[int]) -> Process:
        context = multiprocessing.get_context("spawn")
        child = _SpawnedMain(role, target, args, fds)
        process = context.Process(target=child.run, name=role, daemon=False)
        # A signal must not come between: a child that is given half of what it needs says so with a traceback. The
        # child inherits the mask: a Ctrl-C during its imports is not its business, nor lost for this process. The
        # tracker comes first, because starting it would lift the mask.
        resource_tracker.ensure_running()
        started: SpawnedProcess | None = None
        try:
            with signals_wait():
                process.start()
                started = SpawnedProcess(role, process)
        except BaseException:
            # A Ctrl-C comes as soon as the mask is lifted: then nobody else will ever know of this process.
            if process.pid is not None:
                process.kill()
            if started is not None:
                started.close()
            raise
        return started


class SpawnedProcess:
    """A process started by :class:`SpawnFactory`."""

    def __init__(self, role: str, process: multiprocessing.process.BaseProcess) -> None:
        if process.pid is None:
            raise RuntimeError(f"{role} was not started")
        self.role = role
        self.pid = process.pid
        self._process = process
        self._lock = threading.Lock()
        self._pidfd = os.pidfd_open(process.pid)

    def fileno(self) -> int:
        return self._pidfd

    def exitcode(self) -> int | None:
        # Two threads must not reap at once: the one that comes second would be told that there is no such child.
        with self._lock:
            ended = bool(select.select([self._pidfd], [], [], 0)[0]) if self._pidfd >= 0 else False
            code = self._process.exitcode
        # Where SIGCHLD is ignored, or another part of the program waits for every child, the status is gone.
        return LOST_STATUS if code is None and ended else code

    def send_signal(self, signum: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signum)

    def close(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


class _SpawnedMain:
    """What crosses into a spawned child: the function's name, its arguments, and duplicates of descriptors."""

    def __init__(self, role: str, target: str, args: tuple[Any, ...], fds: Sequence[int]) -> None:
        self._role = role
        self._target = target
        self._args = args
        self._fds = list(fds)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fds": [reduction.DupFd(fd) for fd in self._fds]}

    def run(self) -> None:
        code = 1
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            fds = [fd.detach() for fd in self._fds]  # type: ignore[attr-defined]  # DupFd objects on the child's side
            code = run_target(self._role, self._target, self._args, fds)
        finally:
            # Without the interpreter's teardown: native threads of torch and gloo must not outlive what they use.
            os._exit(code)


def run_target(role: str, target: str, args: tuple[Any, ...], fds: list[int]) -> int:
    """In a child: name the process, call ``function(*args, fds)``, return the exit code that its end means."""
    multiprocessing.current_process().name = role
    code = 0
    try:
        module, _, function = target.partition(":")
        getattr(importlib.import_module(module), function)(*args, fds)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    streams: list[TextIO | None] = [sys.stdout, sys.stderr]
    for stream in streams:
        with contextlib.suppress(OSError, ValueError):
            if stream is not None:  # as where the program was started with it closed
                stream.flush()
    return code


@dataclass(slots=True)
class Rank:
    """One rank as the launcher knows it: what it has reported, whether and how it has ended."""

    process: Process
    lifeline: int
    report: int
    role: str
    phase: str = START_PHASE
    ready: ReadyReport | None = None
    failed: FailedReport | None = None
    exitcode: int | None = None
    ended: bool = False
    silent: bool = False
    _buffer: bytes = field(default=b"")

    def notify(self, notice: Notice) -> None:
        """Say something on the lifeline; harmless if nobody listens any more."""
        with contextlib.suppress(OSError):
            os.write(self.lifeline, msgspec.json.encode(notice) + b"\n")

    def read_report(self) -> None:
        """Take in what the report pipe holds; never blocks."""
        while not self.silent:
            try:
                data = os.read(self.report, 65536)
            except BlockingIOError:
                return
            self.silent = not data
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            for line in lines:
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            report = msgspec.json.decode(line, type=Report)
        except msgspec.MsgspecError as error:
            report = FailedReport(ExitCode.OWN_FAILURE, self.role, f"unreadable report {line[:80]!r}: {error}")
        if isinstance(report, PhaseReport):
            self.phase = report.phase
        elif isinstance(report, ReadyReport):
            self.ready = report
        elif self.failed is None:
            self.failed = report


class Ranks:
    """All rank processes of one engine. Used by one thread at a time."""

    def __init__(self) -> None:
        self.all: list[Rank] = []
        self._poll = select.poll()
        self._by_fd: dict[int, Rank] = {}

    def start(self, launch: Launch, factory: ProcessFactory, shared: Sequence[int]) -> None:
        """Start every rank. If one cannot be started, the error comes through and :attr:`all` holds those before it.

        Each gets its lifeline, its report pipe and `shared`: the engine's claim and its pulse table.
        """
        encoded = launch.encode()
        for rank in range(launch.config.tp_size):
            with signals_wait():
                self._start_one(rank_role(rank, launch.engine_index), (encoded, rank), factory, shared)

    def _start_one(
        self, role: str, args: tuple[str | int | bytes, ...], factory: ProcessFactory, shared: Sequence[int]
    ) -> None:
        lifeline_read, lifeline_write = os.pipe()
        try:
            report_read, report_write = os.pipe()
        except OSError:
            os.close(lifeline_read)
            os.close(lifeline_write)
            raise
        try:
            process = factory.start(role, RANK_TARGET, args, (lifeline_read, report_write, *shared))
        except BaseException:
            os.close(lifeline_write)
            os.close(report_read)
            raise
        finally:
            os.close(lifeline_read)
            os.close(report_write)
        for fd in (lifeline_write, report_read):
            os.set_blocking(fd, False)
        self._adopt(Rank(process, lifeline_write, report_read, role))

    def _adopt(self, rank: Rank) -> None:
        self.all.append(rank)
        for fd in (rank.report, rank.process.fileno()):
            self._by_fd[fd] = rank
            self._poll.register(fd, select.POLLIN)

    def watch(self, fd: int) -> None:
        """Let :meth:`wait` also return when `fd` is readable."""
        self._poll.register(fd, select.POLLIN)

    def unwatch(self, fd: int) -> None:
        self._poll.unregister(fd)

    def wait(self, deadline: Deadline) -> bool:
        """Block until a rank reports or ends, or a watched descriptor is readable; False at the deadline."""
        events = self._poll.poll(deadline.remaining_ms())
        for fd, _ in events:
            rank = self._by_fd.get(fd)
            if rank is not None:
                self._look(rank, fd)
        return bool(events)

    def _look(self, rank: Rank, fd: int) -> None:
        rank.read_report()
        if fd == rank.report:
            if rank.silent:
                self._poll.unregister(fd)
        elif not rank.ended and (code := rank.process.exitcode()) is not None:
            rank.exitcode = code
            rank.ended = True
            self._poll.unregister(fd)

    def living(self) -> list[Rank]:
        """The ranks that have not ended yet."""
        return [rank for rank in self.all if not rank.ended]

    def notify(self, notice: Notice) -> None:
        """Say something to every rank that lives."""
        for rank in self.living():
            rank.notify(notice)

    def wait_for_end(self, deadline: Deadline, ranks: Sequence[Rank] | None = None) -> bool:
        """Wait until all, or those given, have ended; False at the deadline."""
        waited = self.all if ranks is None else ranks
        while not all(rank.ended for rank in waited):
            # Looked at on every turn: a descriptor that stays readable must not keep this going for ever.
            if deadline.expired():
                return False
            self.wait(deadline)
        return True

    def stop(self, deadline: Deadline, said: int = 0) -> None:
        """Orderly stop: rank 0 first, which takes the others along over the relay; what is left then hears it too.

        `said` is the number of the last message that client 0 has sent.
        """
        first = self.all[:1]
        for rank in first:
            rank.notify(Notice("stop", limit=deadline.remaining(), said=said))
        self.wait_for_end(deadline, first)
        # A moment for the ranks that rank 0 has told, so that they leave because of it.
        self.wait_for_end(Deadline.after(FOLLOW_GRACE).sooner(deadline))
        self.notify(Notice("stop", limit=deadline.remaining()))
        self.wait_for_end(deadline)
        self.kill()

    def take_down(self, notice: Notice, grace: float, start_grace: float = START_GRACE) -> None:
        """The engine fails: tell the ranks, give them `grace` seconds to leave by themselves, then use signals.

        A rank that reports nothing within `start_grace` seconds still imports what it needs; it holds nothing and does
        not listen, so it gets its signal then.
        """
        self.notify(notice)
        deadline = Deadline.after(grace)
        if self.wait_for_end(Deadline.after(start_grace).sooner(deadline)):
            return
        for rank in self.living():
            if rank.phase == START_PHASE:
                rank.process.send_signal(signal.SIGTERM)
        self.wait_for_end(deadline)
        self.kill()

    def kill(self) -> None:
        """End what still runs, by SIGKILL: a rank that listens has left by itself, and it ignores SIGTERM."""
        for rank in self.living():
            rank.process.send_signal(signal.SIGKILL)
        self.wait_for_end(Deadline.after(KILL_LIMIT))

    def disown(self) -> None:
        """In a forked child: close the lifelines, whose end must be the end of the parent alone."""
        for rank in self.all:
            os.close(rank.lifeline)
        self.all = []

    def close(self) -> None:
        """Give back all descriptors."""
        for rank in self.all:
            os.close(rank.lifeline)
            os.close(rank.report)
            rank.process.close()
        self.all = []
        self._by_fd = {}
