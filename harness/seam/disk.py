"""The engine's folder as faults of the disk see it: the files of its endpoints, and the file system below it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

FILLER = "@full"
"""How the names begin of what fills a disk; a run's clean-up knows by the @ that they are not the engine's."""

SPACE, NAMES = 1 << 20, 64
"""How many bytes and files a small file system may hold: room for an engine, and soon full."""

_MS_NOSUID, _MS_NODEV, _MNT_DETACH = 2, 4, 2
_CHUNK = 1 << 16


class DiskError(Exception):
    """A file system cannot be made here; one clear sentence."""


class Disk:
    """``files`` are the names below ``folder`` of a link's endpoints; the link ``store`` is the rendezvous store.

    ``earlier_life`` leaves in a folder what a killed engine leaves beside its sockets.
    """

    def __init__(
        self,
        folder: Path,
        files: Callable[[str], Sequence[str]] = lambda link: (link,),
        earlier_life: Callable[[Path], None] = lambda folder: None,
    ) -> None:
        self._folder, self._files, self._earlier_life = folder, files, earlier_life

    def unlink(self, link: str) -> bool:
        """Removes the file of every endpoint of the link; whether there was one."""
        removed = False
        for name in self._files(link):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._folder / name)
                removed = True
        return removed

    def leave_stale(self, link: str, of: Literal["engine", "stranger"]) -> bool:
        """Puts a dead file at every endpoint of the link at which there is none; whether there was room."""
        free = [self._folder / name for name in self._files(link) if not os.path.lexists(self._folder / name)]
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if of == "engine":
            self._earlier_life(self._folder)
        for path in free:
            if link == "store":
                path.write_bytes(b"left behind")
            else:
                with socket.socket(socket.AF_UNIX) as left:
                    left.bind(str(path))
        return bool(free)

    def fill(self) -> bool:
        """Fills the folder's file system, if it is one of a run's own; whether it is."""
        found = os.statvfs(self._folder)
        if found.f_files != NAMES:
            return False
        with contextlib.suppress(OSError), (self._folder / FILLER).open("wb", buffering=0) as filler:
            while filler.write(bytes(_CHUNK)):
                pass
        number = 0
        while _made(self._folder / f"{FILLER}.{number}"):
            number += 1
        return True


def drain(folder: Path) -> None:
    """Undoes `Disk.fill`. Harmless where nothing was filled."""
    for filler in folder.glob(f"{FILLER}*"):
        filler.unlink(missing_ok=True)


def _made(path: Path) -> bool:
    """Whether there was room for one more name."""
    try:
        path.touch()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True


def small_disk(folder: Path) -> int:
    """Makes ``folder`` a link to a fresh, small file system in memory; returns the descriptor that keeps it.

    It has no place of its own among the mounts: when the descriptor's last holder is gone, however it went, so is the
    file system. Raises DiskError where this process may not make one.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    folder.mkdir(mode=0o700)
    options = f"size={SPACE},nr_inodes={NAMES},mode=700".encode()
    if libc.mount(b"nowedge", os.fsencode(folder), b"tmpfs", _MS_NOSUID | _MS_NODEV, options):
        why = os.strerror(ctypes.get_errno())
        folder.rmdir()
        raise DiskError(f"full_disk needs a file system of its own, which only root may make (mount: {why})")
    held = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    libc.umount2(os.fsencode(folder), _MNT_DETACH)
    folder.rmdir()
    folder.symlink_to(f"/proc/{os.getpid()}/fd/{held}")
    return held
