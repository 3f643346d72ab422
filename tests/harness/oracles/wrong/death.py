"""Rank 1 fails by itself in its second step, with nothing wrong around it."""

from __future__ import annotations

import multiprocessing
from typing import Any

from engine.core import EngineCore

_step = EngineCore.step
_steps: list[int] = []


def _fails(self: EngineCore, *args: Any) -> Any:
    _steps.append(1)
    if len(_steps) == 2:
        raise RuntimeError("no reason at all")
    return _step(self, *args)


if multiprocessing.current_process().name == "dp0.rank1":
    EngineCore.step = _fails  # type: ignore[method-assign, assignment]
