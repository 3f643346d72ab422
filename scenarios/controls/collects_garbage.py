"""Each rank collects garbage in its second step, and has so much of it that this takes a while."""

from __future__ import annotations

import gc
import multiprocessing
from typing import Any

from engine.core import EngineCore

OBJECTS = 400_000
"""Objects in cycles: some tenths of a second for a collection."""

AT = 2
"""The step."""

_step = EngineCore.step
_steps = 0


class _Cycle:
    def __init__(self) -> None:
        self.own = self


def _step_with_garbage(self: EngineCore, *args: Any, **kwargs: Any) -> Any:
    global _steps
    _steps += 1
    if _steps == AT:
        gc.disable()
        for _ in range(OBJECTS):
            _Cycle()
        gc.enable()
        gc.collect()
    return _step(self, *args, **kwargs)


if multiprocessing.current_process().name.startswith("dp"):
    EngineCore.step = _step_with_garbage  # type: ignore[method-assign]
