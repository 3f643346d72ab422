"""Places for further clients of one engine, in this process or in others.

The client that starts the engine owns it. It makes a :class:`ClientSeat` for each other one and hands it over: as an
argument of a multiprocessing process, through a fork, or within the process. A seat's client has links of its own
(`input.1` and `output.1`) and two pipes of its own to the owner. On one the owner tells the engine's death, with its
cause, and its end is the owner's; on the other the guest tells where it is, what it has found out and when it leaves.
Its end is the guest's, and so is its process's: a fork of the owner may hold a copy of any pipe for longer. Then rank 0
drops what the guest owned.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import msgspec

from engine.clock import Deadline
from engine.config import EngineConfig
from engine.errors import EngineDeadError
from engine.launch import Ranks
from engine.messages import CLIENT_ROLE, Notice
from engine.monitor import DeathLatch, EngineStopped
from engine.wake import Wake
from engine.watchdog import Watchdog

ANSWER_LIMIT = 2.0
"""Seconds for the owner to say what the engine died of, once a guest has found that it is dead."""


class Word(msgspec.Struct, frozen=True, tag="dead"):
    """A line on either pipe of a seat: a death, its culprit and cause; `stopped` if the owner shut the engine down."""

    culprit: str
    cause: str
    stopped: bool = False


class Here(msgspec.Struct, frozen=True, tag="here"):
    """A guest's first line: the process that it is in."""

    pid: int


class Gone(msgspec.Struct, frozen=True, tag="gone"):
    """A guest's last line: it asks for nothing more."""


Line = Word | Here | Gone


def say(pipe: int, line: Line) -> None:
    """Write it; harmless if nobody reads any more."""
    with contextlib.suppress(OSError):
        os.write(pipe, msgspec.json.encode(line) + b"\n")


@dataclass(slots=True)
class ClientSeat:
    """One further client's place. It holds three descriptors; :meth:`close` it once it was handed to another process.

    `pids` are the ranks' process ids. A client that joins with it takes the descriptors over.
    """

    config: EngineConfig
    epoch: int
    directory: str
    client_index: int
    pids: list[int]
    news: int
    presence: int
    pulses: int

    def __enter__(self) -> ClientSeat:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up the seat, or this process's copy of it. Harmless if a client has taken it."""
        for name in ("news", "presence", "pulses"):
            fd = getattr(self, name)
            if fd >= 0:
                os.close(fd)
            setattr(self, name, -1)

    def take(self) -> tuple[int, int, int]:
        """The descriptors (news, presence, pulses), which are the caller's from now on.

        Raises ValueError if they have been given away already.
        """
        if self.news < 0:
            raise ValueError(f"the seat of client {self.client_index} was taken or closed already")
        taken = self.news, self.presence, self.pulses
        self.news = self.presence = self.pulses = -1
        return taken

    def __getstate__(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__slots__}
        shared = {name: reduction.DupFd(fields[name]) for name in ("news", "presence", "pulses")}
        return {**fields, **shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value.detach() if name in ("news", "presence", "pulses") else value)


class _Guest:
    """A seat as the owner knows it: the writing end of its news, the reading end of its presence, its process."""

    def __init__(self, client_index: int, news: int, presence: int) -> None:
        self.client_index = client_index
        self.news = news
        self.presence = presence
        self.process = -1
        self.watched: list[int] = []
        self._buffer = b""

    def lines(self) -> list[Line]:
        """What it has said since the last call, and at the end that it is gone, whether or not it said so."""
        lines: list[Line] = []
        try:
            data = os.read(self.presence, 65536)
            *whole, self._buffer = (self._buffer + data).split(b"\n")
            for line in whole:
                with contextlib.suppress(msgspec.MsgspecError):
                    lines.append(msgspec.json.decode(line, type=Line))
            if not data:
                lines.append(Gone())
        except BlockingIOError:
            if self.process >= 0 and select.select([self.process], [], [], 0)[0]:
                lines.append(Gone())
        return lines

    def meet(self, pid: int) -> bool:
        """It is in that process; False if that has ended."""
        with contextlib.suppress(ProcessLookupError):
            self.process = os.pidfd_open(pid)
        return self.process >= 0

    def close(self) -> None:
        for fd in (self.news, self.presence, self.process):
            if fd >= 0:
                os.close(fd)
        self.news = self.presence = self.process = -1


class Seats:
    """The owner's side of all seats. Made by any thread, attended to by the monitor's."""

    def __init__(self, latch: DeathLatch) -> None:
        self.changed: Callable[[], None] = lambda: None
        """Called when there is a new seat to attend to."""
        self._latch = latch
        # Reentrant: a collection of garbage, and in it the client's finalizer, may come at any moment.
        self._lock = threading.RLock()
        self._guests: list[_Guest] = []
        self._given: set[int] = set()
        latch.listen(self._tell)

    def make(
        self, config: EngineConfig, epoch: int, directory: str, client_index: int, pids: list[int], pulses: int
    ) -> ClientSeat:
        """The seat of client `client_index`, which can be had once. Raises ValueError, or what is latched."""
        if type(client_index) is not int or not 1 <= client_index < config.client_count:
            most = config.client_count - 1
            expected = f"1 to {most}" if most else "a larger client_count, which has room for one"
            raise ValueError(f"client_index: got {client_index!r}, expected {expected}")
        with self._lock, contextlib.ExitStack() as undo:
            self._latch.check_open()  # later than that nobody would tell this one anything
            if client_index in self._given:
                raise ValueError(f"client_index: the seat of client {client_index} was given away already")
            fds: list[int] = []
            for _ in range(2):
                fds += os.pipe()
                undo.callback(os.close, fds[-2])
                undo.callback(os.close, fds[-1])
            news_read, news_write, presence_read, presence_write = fds
            for fd in (news_write, presence_read):
                os.set_blocking(fd, False)
            seat = ClientSeat(config, epoch, directory, client_index, pids, news_read, presence_write, os.dup(pulses))
            undo.pop_all()
            self._given.add(client_index)
            self._guests.append(_Guest(client_index, news_write, presence_read))
        self.changed()
        return seat

    def attend(self, ranks: Ranks) -> EngineDeadError | None:
        """See :class:`engine.monitor.Guests`."""
        with self._lock:
            guests = list(self._guests)
        for guest in guests:
            if not guest.watched:
                self._watch(guest, guest.presence, ranks)
            for line in guest.lines():
                if isinstance(line, Word):
                    return EngineDeadError(line.culprit, line.cause)
                if isinstance(line, Here) and guest.meet(line.pid):
                    self._watch(guest, guest.process, ranks)
                else:
                    self._part(guest, ranks)
                    break
        return None

    def _watch(self, guest: _Guest, fd: int, ranks: Ranks) -> None:
        guest.watched.append(fd)
        ranks.watch(fd)

    def _part(self, guest: _Guest, ranks: Ranks) -> None:
        """That guest is gone, and rank 0 hears of it."""
        for fd in guest.watched:
            ranks.unwatch(fd)
        self._drop(guest)
        if ranks.all:
            ranks.all[0].notify(Notice("gone", client=guest.client_index))

    def _drop(self, guest: _Guest) -> None:
        with self._lock:
            if guest in self._guests:
                self._guests.remove(guest)
                guest.close()

    def _tell(self) -> None:
        """The engine is dead: every guest learns of what."""
        error = self._latch.error
        if error is None:
            return
        word = Word(error.culprit, error.cause, isinstance(error, EngineStopped))
        with self._lock:
            for guest in list(self._guests):
                say(guest.news, word)

    def close(self) -> None:
        """Let go of all pipes, which every guest reads as the owner's end."""
        with self._lock:
            for guest in list(self._guests):
                self._drop(guest)

    def disown(self) -> None:
        """In a forked child: the pipes are the parent's, and its end must be its alone."""
        self._lock = threading.RLock()  # another thread may have held it
        self.close()


class SeatWatch:
    """A guest's watch: one thread that waits for the owner's word, with the same watchdog that an owner has."""

    def __init__(self, latch: DeathLatch, watchdog: Watchdog, news: int, presence: int) -> None:
        self._latch = latch
        self._watchdog = watchdog
        self._news = news
        self._presence = presence
        self._wake = Wake()
        self.thread = threading.Thread(
            target=_watch, args=(latch, watchdog, news, presence, self._wake), name="engine-seat", daemon=True
        )
        try:
            self.thread.start()
        except BaseException:
            self._wake.close()
            raise

    def wake(self) -> None:
        """Let the thread look at the latch."""
        self._wake.call()

    def busy(self) -> None:
        """Something was sent: if the thread sleeps without a limit, let it ask the watchdog anew."""
        if self._watchdog.asleep:
            self.wake()

    def stop(self, limit: float, *, drain: bool) -> None:
        """Leave. The engine goes on without this client, whatever `limit` and `drain` say.

        Safe to call again, but not on the thread itself.
        """
        self._latch.set(EngineStopped(cause="this client of the engine was shut down"))
        self.wake()
        self.thread.join(limit + 1.0)
        self.let_go()

    def let_go(self) -> None:
        """Close the pipes, which the owner reads as this client's end."""
        self._wake.close()
        for fd in (self._news, self._presence):
            if fd >= 0:
                os.close(fd)
        self._news = self._presence = -1

    def disown(self) -> None:
        """In a forked child: the pipes are the parent's."""
        self._wake.disown()
        self.let_go()


def _watch(latch: DeathLatch, watchdog: Watchdog, news: int, presence: int, wake: Wake) -> None:
    """The thread: until the engine, or this client of it, is dead."""
    try:
        _listen(latch, watchdog, news, presence, wake)
    except Exception as failure:
        # A client that nobody tells anything must not go on: the engine's death would not reach it.
        latch.set(EngineDeadError(CLIENT_ROLE, f"its seat thread failed: {type(failure).__name__}: {failure}"))
    finally:
        say(presence, Gone())


def _listen(latch: DeathLatch, watchdog: Watchdog, news: int, presence: int, wake: Wake) -> None:
    poller = select.poll()
    poller.register(news, select.POLLIN)
    poller.register(wake.fileno(), select.POLLIN)
    reader = NewsReader(news)
    while latch.error is None:
        deadline: Deadline = watchdog.deadline()
        poller.poll(deadline.remaining_ms())
        wake.clear()
        error = reader.read()
        if error is None and (error := watchdog.bark()) is not None:
            # The owner, which may wait for nothing itself, has to end the engine, and says of what: to all the same.
            say(presence, Word(error.culprit, error.cause))
            error = reader.wait(Deadline.after(ANSWER_LIMIT)) or error
        if error is not None:
            latch.set(error)


class NewsReader:
    """Reads what the owner tells; never blocks."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = b""

    def wait(self, deadline: Deadline) -> EngineDeadError | None:
        """As :meth:`read`, but waits for news until the deadline."""
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        while (error := self.read()) is None and not deadline.expired():
            poller.poll(deadline.remaining_ms())
        return error

    def read(self) -> EngineDeadError | None:
        """The death that the owner has told, or its own; None if there is no news."""
        while True:
            try:
                data = os.read(self._fd, 65536)
            except BlockingIOError:
                return None
            self._buffer += data
            line, ended, _ = self._buffer.partition(b"\n")
            if ended:
                word = msgspec.json.decode(line, type=Word)
                return EngineStopped(cause=word.cause) if word.stopped else EngineDeadError(word.culprit, word.cause)
            if not data:
                return EngineDeadError(CLIENT_ROLE, "the client that owns the engine is gone")
