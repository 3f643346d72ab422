"""Whoever came last starts first, as with a stack in the place of a queue: the others wait for as long as some come."""

from __future__ import annotations

import multiprocessing

from engine.scheduler import Scheduler

_start_waiting = Scheduler._start_waiting


def _last_first(self: Scheduler) -> None:
    self._waiting.reverse()
    _start_waiting(self)
    self._waiting.reverse()


if multiprocessing.current_process().name != "MainProcess":
    Scheduler._start_waiting = _last_first  # type: ignore[method-assign]
