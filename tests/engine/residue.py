"""What a killed engine leaves in a directory that it was given."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from engine.endpoints import STORE, Endpoints


def bind(path: Path) -> None:
    """A socket file that nobody serves."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def leave_as_if_killed(directory: Path, *links: str) -> None:
    """A store with addresses of the dead, socket files of these names, and the lock file that says whose they are."""
    endpoints = Endpoints.create(str(directory), 12)
    for link in links:
        bind(directory / link)
    Path(endpoints.path(STORE)).write_bytes(b"addresses of the dead")
    if endpoints.claim is not None:
        endpoints.claim.release()


def listing(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything in a directory: kind and inode, and the content of files."""
    found = {}
    for entry in os.scandir(directory):
        content = Path(entry.path).read_bytes() if entry.is_file(follow_symlinks=False) else b""
        found[entry.name] = (entry.stat(follow_symlinks=False).st_mode, entry.inode(), content)
    return found
