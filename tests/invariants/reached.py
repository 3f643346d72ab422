"""What a copy with probes writes down: which of the marked lines has run, in whatever process it ran.

The copy's engine imports this from the copy itself, also in a program that a test starts. The record is a file beside
the copy, a byte for each line, in shared memory from the first import on: a process that may open nothing any more
still writes it.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

COPY = Path(__file__).resolve().parents[2]
RECORD = COPY.with_name(f"{COPY.name}.reached")
"""Made by who made the copy, as long as there are probes in it."""


def _record() -> bytearray | mmap.mmap:
    try:
        fd = os.open(RECORD, os.O_RDWR)
    except FileNotFoundError:
        return bytearray()
    try:
        return mmap.mmap(fd, 0)
    finally:
        os.close(fd)


_seen = _record()


def reached(line: int) -> None:
    """The marked line of that number is about to run."""
    _seen[line] = 1


def take() -> list[int]:
    """The numbers of the lines that have run since the last call, if the copy has probes."""
    lines = [line for line, seen in enumerate(bytes(_seen)) if seen]
    for line in lines:
        _seen[line] = 0
    return lines
