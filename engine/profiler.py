"""What one rank does, recorded by torch's profiler into a Chrome trace.

It is the one inside of :mod:`torch.profiler`, whose own class imports torch's compiler when it first starts: that takes
seconds, which a step may not have.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from torch.autograd.profiler import profile


class Profiler:
    """At most one recording at a time. `role` goes into the names of the files."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._running: Any = None
        self._directory: str | None = None
        self._count = 0

    def start(self, directory: str | None) -> None:
        """Raises ValueError if it runs already, or if a directory is named that cannot be written to."""
        if self._running is not None:
            raise ValueError("a profile is being recorded already")
        if directory is not None:
            _require_writable(directory)
        running: Any = profile(use_kineto=True)
        running.__enter__()
        self._running, self._directory = running, directory

    def stop(self, directory: str | None) -> str:
        """Write the trace and return its path. The recording is over whatever happens.

        Raises ValueError if nothing is recorded, or if there is no directory to write to.
        """
        if self._running is None:
            raise ValueError("no profile is being recorded")
        running, self._running = self._running, None
        running.__exit__(None, None, None)
        target = directory if directory is not None else self._directory
        if target is None:
            raise ValueError("no directory was named, neither at the start nor now")
        _require_writable(target)
        self._count += 1
        path = os.path.join(target, f"{self._role}.{os.getpid()}.{self._count}.trace.json")
        running.export_chrome_trace(path)
        if not Path(path).is_file():  # torch only prints why
            raise ValueError(f"the trace could not be written to {path!r}")
        return path


def _require_writable(directory: str) -> None:
    try:
        tempfile.TemporaryFile(dir=directory).close()
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ValueError(f"directory {directory!r} cannot be written to: {why}") from None
