"""Whatever comes is taken in: nobody counts how many requests are under way."""

from __future__ import annotations

import multiprocessing
from typing import Any

import msgspec

from engine.client.sending import Outbox
from engine.scheduler import Scheduler

_send, _take = Outbox.add, Scheduler.add
_ANY = 10_000


def _send_all(self: Outbox, *args: Any) -> Any:
    self._resources.config = msgspec.structs.replace(self._resources.config, max_waiting=_ANY)
    return _send(self, *args)


def _take_all(self: Scheduler, *args: Any) -> Any:
    self._config = msgspec.structs.replace(self._config, max_waiting=_ANY)
    return _take(self, *args)


if multiprocessing.current_process().name != "MainProcess":
    Outbox.add = _send_all  # type: ignore[method-assign, assignment]
    Scheduler.add = _take_all  # type: ignore[method-assign, assignment]
