"""A plugin for plans: at each step a process notes what it can still do, as seen from inside of it.

``probe.clock`` is its monotonic clock in nanoseconds, ``probe.open`` whether it can open a file, ``probe.memory``
whether it can have 64 MiB.
"""

from __future__ import annotations

import functools
import mmap
import multiprocessing
import os
import time
from typing import Any

from engine.core import EngineCore
from harness.seam.site import active

_SIXTY_FOUR = 64 << 20


def _note() -> None:
    seam = active()
    if seam is None:
        return
    seam.mark("probe.clock", value=int(time.monotonic() * 1e9))
    seam.mark("probe.open", value=int(_can_open()))
    seam.mark("probe.memory", value=int(_can_allocate()))


def _can_open() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return False
    return True


def _can_allocate() -> bool:
    try:
        mmap.mmap(-1, _SIXTY_FOUR).close()
    except OSError:
        return False
    return True


def _probed(step: Any) -> Any:
    @functools.wraps(step)
    def probed(self: EngineCore, *args: Any) -> Any:
        _note()
        return step(self, *args)

    return probed


if multiprocessing.current_process().name != "MainProcess" and not hasattr(EngineCore.step, "__probed__"):
    EngineCore.step = _probed(EngineCore.step)  # type: ignore[method-assign]
    EngineCore.step.__probed__ = True  # type: ignore[attr-defined]
