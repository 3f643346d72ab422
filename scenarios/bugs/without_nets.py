"""An engine without nets: no deadline, no watch over processes, no word from one rank to the others that it fails.

The relay strategies and the links are as ever, and a healthy run is served as ever. But whoever waits for a frame, for
a rank or for an answer waits for it alone: a lost frame or a dead peer is a wedge. Engines have been so from their
beginning (relay.md 1.3: no watchdog or monitor thread anywhere), and the shapes of wedges are shown on this one.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Sequence
from typing import Any

from engine import monitor
from engine.client import starting
from engine.clock import Deadline, now
from engine.errors import PeerFailed, StopRequested
from engine.launch import Rank
from engine.lifeline import Ear, Lifeline
from engine.parallel.group import TensorGroup
from engine.watchdog import Watchdog

_init = TensorGroup.__init__


FAR = 1e8
"""Seconds after which a deadline comes that should never come."""

SHORT = 0.1
"""Whoever waits for less looks again at once: that is a poll, and no deadline."""


def _never(cls: type[Deadline], seconds: float | None) -> Deadline:
    return cls(None if seconds is None else now() + (seconds if seconds < SHORT else FAR))


def _unnoticed(rank: Rank) -> bool:
    return False


def _only_a_stop(self: Lifeline, ears: Sequence[Ear], stop: bool) -> None:
    self._read()
    for ear in ears:  # what it says of the opening is heard, what it says of an end is not
        with contextlib.suppress(PeerFailed):
            ear.listen()
    if stop and self._stop is not None:
        raise StopRequested


def _unsliced(self: TensorGroup, *args: Any, **kwargs: Any) -> None:
    _init(self, *args, **{**kwargs, "bounded": False})


if multiprocessing.current_process().name != "MainProcess":  # in the processes of a run alone
    Deadline.after = classmethod(_never)  # type: ignore[method-assign, assignment]
    monitor.has_failed = starting.has_failed = _unnoticed  # type: ignore[attr-defined]
    Watchdog.deadline = lambda self: Deadline.never()  # type: ignore[method-assign]
    Watchdog.bark = lambda self: None  # type: ignore[method-assign]
    Lifeline._run = lambda self: None  # type: ignore[method-assign]
    Lifeline._check = _only_a_stop  # type: ignore[method-assign]
    Lifeline.last_word = lambda self: None  # type: ignore[method-assign]
    TensorGroup.__init__ = _unsliced  # type: ignore[method-assign]
