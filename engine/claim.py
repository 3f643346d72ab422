"""Who uses a socket directory: a lock that its launcher and every rank hold together.

A lock file with `flock`, whose open file the launcher hands to every rank, so that it is held until the last process of
the engine is gone, however it went. A second engine on the same directory would steal the first one's sockets (a bind
on an existing path succeeds), so it is refused; one that follows a killed engine waits for what is left of that.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

from engine.clock import Deadline
from engine.errors import ConfigError

LOCK = "lock"
"""The lock file's name inside the directory."""

PREFIX = "nowedge-engine-"
"""How the names of private directories begin."""

CLAIM_LIMIT = 5.0
"""Seconds to wait for the processes of an engine whose launcher was killed, before the directory counts as in use."""

_POLL = 0.02


class Claim:
    """A held directory. Other processes hold it too if they are given duplicates of :meth:`fileno`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def of(cls, directory: str) -> Claim:
        """Hold `directory`, which exists. Raises :class:`ConfigError` if another engine goes on using it."""
        path = os.path.join(directory, LOCK)
        deadline = Deadline.after(CLAIM_LIMIT)
        while True:
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise ConfigError("socket_dir", directory, f"a directory that can be written ({error})") from error
            # The holder before may have removed the file while this process waited for it: then it holds nothing.
            if _lock(fd) and _names(path, fd):
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
                return cls(fd)
            holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            if deadline.expired():
                raise ConfigError("socket_dir", directory, f"a directory that no running engine uses (pid {holder})")
            time.sleep(_POLL)

    @classmethod
    def fresh(cls) -> tuple[str, Claim]:
        """Make a directory that only this user can enter, and hold it. Stale ones of this user go away first."""
        _sweep()
        directory = tempfile.mkdtemp(prefix=PREFIX)
        # Locked before it has its name: a lock file that nobody holds is what tells a stale directory from a new one.
        early = os.path.join(directory, f"{LOCK}.new")
        fd = os.open(early, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _lock(fd)
        os.rename(early, os.path.join(directory, LOCK))
        return directory, cls(fd)

    def fileno(self) -> int:
        """The descriptor that holds the directory; -1 once released."""
        return self._fd

    def release(self) -> None:
        """Give this process's hold back. Safe to call twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _sweep() -> None:
    """Remove private directories of this user that no process holds any more: what a SIGKILL of everything left."""
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            fd = os.open(directory / LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                if os.fstat(fd).st_uid == os.getuid() and _lock(fd):
                    shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _names(path: str, fd: int) -> bool:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (os.fstat(fd).st_dev, os.fstat(fd).st_ino)
