"""Who uses a socket directory: a lock that its launcher and every rank hold together.

A lock file with `flock`, whose open file the launcher hands to every rank, so that it is held until the last process of
the engine is gone, however it went. A second engine on the same directory would steal the first one's sockets (a bind
on an existing path succeeds), so it is refused; one that follows a killed engine waits for what is left of that.

The file also says whose the other files are. Its lines are :data:`MARK`, the holder's pid, and, once the engine has
found that all names it needs are its own, the kind of directory. Only what lies beside such a file may be removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

from engine.clock import Deadline
from engine.errors import ConfigError
from engine.signals import signals_come

LOCK = "engine.lock"
"""The lock file's name inside the directory."""

MARK = b"nowedge engine lock"
"""Its first line. A file of that name without it is somebody else's and is never touched."""

PREFIX = "nowedge-engine-"
"""How the names of private directories begin."""

CLAIM_LIMIT = 5.0
"""Seconds to wait for the processes of an engine whose launcher was killed, before the directory counts as in use."""

_POLL = 0.02
_GIVEN, _PRIVATE = b"given directory", b"private directory"
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Claim:
    """A held directory. Other processes hold it too if they are given duplicates of :meth:`fileno`.

    `after_engine` says that an engine had the directory before and was killed: what it left there may be removed.
    """

    def __init__(self, fd: int, path: str, *, after_engine: bool = False) -> None:
        self._fd = fd
        self._path = path
        self.after_engine = after_engine

    @classmethod
    def of(cls, directory: str, limit: float = CLAIM_LIMIT) -> Claim:
        """Hold `directory`, which exists; wait at most `limit` seconds for whoever has it.

        Raises :class:`ConfigError` if another engine goes on using it, or if its lock file is not an engine's.
        """
        path = os.path.join(directory, LOCK)
        deadline = Deadline.after(limit)
        while True:
            try:
                claim = _try(directory, path)
            except OSError as error:
                raise ConfigError("socket_dir", directory, f"a directory that can be written ({error})") from error
            if isinstance(claim, Claim):
                return claim
            if deadline.expired():
                raise ConfigError("socket_dir", directory, f"a directory that no running engine uses (pid {claim})")
            with signals_come():
                time.sleep(_POLL)

    @classmethod
    def fresh(cls) -> tuple[str, Claim]:
        """Make a directory that only this user can enter, and hold it. Stale ones of this user go away first.

        Raises :class:`ConfigError` if it cannot be made.
        """
        directory = ""
        try:
            _sweep()
            directory = tempfile.mkdtemp(prefix=PREFIX)
            path = os.path.join(directory, LOCK)
            fd = _make(directory, path, _PRIVATE)
            if fd is None:
                raise FileExistsError(f"{path} was made by somebody else")
        except OSError as error:
            with contextlib.suppress(OSError):
                os.rmdir(directory)
            raise ConfigError("socket_dir", None, f"a temporary directory that can be used ({error})") from error
        return directory, cls(fd, path)

    def confirm(self) -> None:
        """All names that the engine needs in the directory are its own from now on."""
        _write(self._fd, _GIVEN)

    def fileno(self) -> int:
        """The descriptor that holds the directory; -1 once released."""
        return self._fd

    def remove(self) -> None:
        """Remove the lock file, if it is still the one that is held, and give the hold back."""
        if self._fd >= 0 and _names(self._path, self._fd):
            Path(self._path).unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        """Give this process's hold back. Safe to call twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _try(directory: str, path: str) -> Claim | str:
    """The claim, or who has the directory at the moment."""
    try:
        fd = os.open(path, _FLAGS)
    except FileNotFoundError:
        made = _make(directory, path)
        return "unknown" if made is None else Claim(made, path)
    try:
        mark, pid, kind = _read(fd)
        if mark != MARK:
            raise ConfigError(
                "socket_dir",
                directory,
                f"a directory in which the engine may use the name {LOCK!r}; move {path} away, which no engine made, "
                "or choose another directory",
            )
        # The holder before may have removed the file while this process waited for it: then it holds nothing.
        if _lock(fd) and _names(path, fd):
            _write(fd, kind and _GIVEN)
            claim = Claim(fd, path, after_engine=kind != b"")
            fd = -1
            return claim
        return pid.decode("ascii", "replace").removeprefix("pid ") or "unknown"
    finally:
        if fd >= 0:
            os.close(fd)


def _make(directory: str, path: str, kind: bytes = b"") -> int | None:
    """Make the lock file, held; None if there is one by now. It gets its name only when it is locked and marked."""
    fd, early = tempfile.mkstemp(prefix=f"{LOCK}.", dir=directory)
    try:
        _lock(fd)
        _write(fd, kind)
        os.link(early, path)
        held, fd = fd, -1
        return held
    except FileExistsError:
        return None
    finally:
        os.unlink(early)
        if fd >= 0:
            os.close(fd)


def _read(fd: int) -> tuple[bytes, bytes, bytes]:
    """The first three lines of a lock file, empty where there are none."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return b"", b"", b""
    mark, pid, kind, *_ = [*os.pread(fd, 200, 0).split(b"\n"), b"", b"", b""]
    return mark, pid, kind


def _write(fd: int, kind: bytes) -> None:
    # Never empty in between, and the mark stays: a reader, or a kill, may come at any time.
    content = b"\n".join((MARK, b"pid %d" % os.getpid(), kind)) + (b"\n" if kind else b"")
    os.pwrite(fd, content, 0)
    os.ftruncate(fd, len(content))


def _sweep() -> None:
    """Remove private directories of this user that no process holds any more: what a SIGKILL of everything left."""
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            fd = os.open(directory / LOCK, _FLAGS)
            try:
                mark, _, kind = _read(fd)
                own = mark == MARK and kind == _PRIVATE and os.fstat(fd).st_uid == os.getuid()
                if own and _lock(fd):
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
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (os.fstat(fd).st_dev, os.fstat(fd).st_ino)
