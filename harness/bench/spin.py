"""Processes beside a measurement: each (``python -m harness.bench.spin``) uses a core until its parent is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator

from harness.interpreter import python


@contextlib.contextmanager
def beside(each: int) -> Iterator[None]:
    """With so many busy processes for each core."""
    with contextlib.ExitStack() as stack:
        for _ in range(each * len(os.sched_getaffinity(0))):
            process = subprocess.Popen(python("harness.bench.spin"))
            stack.callback(process.wait)
            stack.callback(process.send_signal, signal.SIGKILL)
        yield


if __name__ == "__main__":
    parent = os.getppid()
    while os.getppid() == parent:
        sum(range(100_000))
