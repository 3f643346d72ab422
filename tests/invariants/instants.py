"""Any instant of a program's life: the lines of the engine's code that its main thread runs, counted from the first."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import engine

_ENGINE = str(Path(engine.__file__).parent)


class Instants:
    """Counts from :meth:`begin` to :meth:`end`, and calls `act` at line number `wanted`, which may be none at all."""

    def __init__(self, wanted: int, act: Callable[[], None]) -> None:
        self.count = 0
        self._wanted = wanted
        self._act = act
        self._entered: set[tuple[int, int]] = set()

    def begin(self) -> None:
        sys.settrace(self._call)

    def end(self) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(_ENGINE) else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and not self._leaves_a_block(frame):
            self.count += 1
            if self.count == self._wanted:
                self._act()
        return self._line

    def _leaves_a_block(self, frame: FrameType) -> bool:
        """Whether it is at its `with` once more: before the block is really left no signal is ever handled."""
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if not line.startswith(("with ", "async with ")):
            return False
        place = id(frame), frame.f_lineno
        if place in self._entered:
            self._entered.remove(place)
            return True
        self._entered.add(place)
        return False
