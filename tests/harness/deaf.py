"""A plugin for plans in tests: an engine that serves one request and takes no further one, without a word."""

from __future__ import annotations

import multiprocessing
from typing import Any

from engine.scheduler import Scheduler

_add = Scheduler.add


def _only_one(self: Scheduler, *args: Any) -> Any:
    return None if self.counters.accepted else _add(self, *args)


if multiprocessing.current_process().name != "MainProcess":
    Scheduler.add = _only_one  # type: ignore[method-assign, assignment]
