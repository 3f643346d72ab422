"""Waits for the system at the seam: `select.poll`, `select.select`, children that have to end, locked files, sleeps.

What a wait is for is read off its descriptors: the link of a ZMQ socket, ``pid:N`` of a process, ``pipe``, ``event`` of
an event descriptor, ``fd`` of any other.
"""

from __future__ import annotations

import fcntl
import functools
import os
import select
import time
from collections.abc import Callable, Iterable
from typing import Any

from harness.seam import site as seams
from harness.seam.zmq_seam import sockets

_KINDS = {"anon_inode:[eventfd]": "event"}
_PIDFD = "anon_inode:[pidfd]"


def source(fd: int) -> str:
    """What has to happen so that the descriptor is ready, as a wait says it."""
    link = sockets.descriptors.get(fd)
    if link is not None:
        return link
    try:
        kind = os.readlink(f"/proc/self/fd/{fd}")
        if kind == _PIDFD:
            with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as info:
                return f"pid:{next(line.split()[1] for line in info if line.startswith('Pid:'))}"
    except (OSError, StopIteration):
        return "fd"
    return "pipe" if kind.startswith("pipe:") else _KINDS.get(kind, "fd")


def _sources(fds: Iterable[Any]) -> str:
    numbers = (fd if isinstance(fd, int) else fd.fileno() for fd in fds)
    return "|".join(dict.fromkeys(source(number) for number in numbers))


class ObservedPoll:
    """`select.poll()`, whose waits are recorded."""

    def __init__(self) -> None:
        self._inner = _make_poll()
        self._fds: dict[int, None] = {}

    def register(self, fd: Any, eventmask: int = select.POLLIN | select.POLLPRI | select.POLLOUT) -> None:
        """As `select.poll`."""
        self._inner.register(fd, eventmask)
        self._fds[_number(fd)] = None

    def modify(self, fd: Any, eventmask: int) -> None:
        """As `select.poll`."""
        self._inner.modify(fd, eventmask)

    def unregister(self, fd: Any) -> None:
        """As `select.poll`."""
        self._inner.unregister(fd)
        self._fds.pop(_number(fd), None)

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        """As `select.poll`; the timeout is in milliseconds."""
        ready: list[tuple[int, int]]
        if timeout == 0 or seams.active() is None:
            ready = self._inner.poll(timeout)
            return ready
        limit = None if timeout is None or timeout < 0 else timeout
        ready = seams.waiting("fd.poll", limit, lambda: _sources(self._fds), lambda: self._inner.poll(timeout))
        return ready


def _number(fd: Any) -> int:
    return fd if isinstance(fd, int) else int(fd.fileno())


def _select(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(read: Any, write: Any, exceptional: Any, timeout: float | None = None) -> Any:
        if timeout == 0 or seams.active() is None:
            return original(read, write, exceptional, timeout)
        limit = None if timeout is None else timeout * 1000
        return seams.waiting(
            "fd.select",
            limit,
            lambda: _sources([*read, *write, *exceptional]),
            lambda: original(read, write, exceptional, timeout),
        )

    call.__nowedge_original__ = original  # type: ignore[attr-defined]
    return call


def _waitpid(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(pid: int, options: int) -> Any:
        if options & os.WNOHANG:
            return original(pid, options)
        return seams.waiting("process.wait", None, lambda: f"pid:{pid}", lambda: original(pid, options))

    call.__nowedge_original__ = original  # type: ignore[attr-defined]
    return call


def _flock(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(fd: Any, operation: int) -> Any:
        if operation & (fcntl.LOCK_NB | fcntl.LOCK_UN):
            return original(fd, operation)
        return seams.waiting("file.lock", None, lambda: "a locked file", lambda: original(fd, operation))

    call.__nowedge_original__ = original  # type: ignore[attr-defined]
    return call


def _sleep(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(seconds: float) -> Any:
        return seams.waiting("time.sleep", seconds * 1000, lambda: "", lambda: original(seconds))

    call.__nowedge_original__ = original  # type: ignore[attr-defined]
    return call


_make_poll: Callable[[], Any] = select.poll


def install() -> None:
    """Patches what the system is waited in with, once per process; dormant until a seam is active."""
    if hasattr(time.sleep, "__nowedge_original__"):
        return
    setattr(select, "poll", ObservedPoll)  # noqa: B010
    for module, name, wrap in (
        (select, "select", _select),
        (os, "waitpid", _waitpid),
        (fcntl, "flock", _flock),
        (time, "sleep", _sleep),
    ):
        setattr(module, name, wrap(getattr(module, name)))
