"""Descriptors: an engine gets all it needs or is not started, for libzmq ends the whole process where it gets none."""

from __future__ import annotations

import os

from engine.errors import StartupError
from engine.messages import CLIENT_ROLE

OWN = 24
"""What a client opens besides its ranks: sockets, their threads and connections, the claim, the pulse table."""

PER_RANK = 8
"""What it opens for each rank, most of it only while that starts."""


def require(tp_size: int) -> None:
    """Raise :class:`StartupError` unless this process may open what an engine of `tp_size` ranks takes."""
    count = OWN + PER_RANK * tp_size
    opened: list[int] = []
    try:
        for _ in range(count):
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        cause = f"an engine of {tp_size} ranks needs {count} file descriptors, {len(opened)} are left: raise ulimit -n"
        raise StartupError(CLIENT_ROLE, cause, exit_code=None, phase="launch") from error
    finally:
        for descriptor in opened:
            os.close(descriptor)
