"""Pauses of the scheduler, and results that come later.

New requests are accepted during every pause and wait for its end. What becomes of those under way depends on the mode:
`abort` ends them, `wait` lets them finish and is over only then, `keep` freezes them where they are. A pause while one
is on goes on from there: `abort` ends the frozen and the waiting ones too, `wait` lets frozen ones finish.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.scheduler import Scheduler

ABORT, WAIT, KEEP = MODES = ("abort", "wait", "keep")


@dataclass(slots=True, eq=False)
class Deferred:
    """A call's result that comes later; `failure` says why there will be none."""

    done: bool = False
    value: Any = None
    failure: str | None = None

    def settle(self, value: Any = None, failure: str | None = None) -> None:
        """The result is there."""
        self.done, self.value, self.failure = True, value, failure


class Pausing:
    """Whether requests may run."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._draining: list[Deferred] = []
        self.mode: str | None = None
        """The mode of the last pause, None if none is on."""

    def pause(self, mode: str) -> None:
        """Begin a pause. In mode `abort`, the caller has ended all requests."""
        self.mode = mode
        self._scheduler.hold(freeze=mode == KEEP)
        if mode == KEEP:
            self.give_up("what was under way has been frozen before it was finished")

    def drained(self) -> Deferred:
        """The result of a pause in mode `wait`, once nothing is under way."""
        deferred = Deferred()
        self._draining.append(deferred)
        return deferred

    def resume(self) -> None:
        """End any pause."""
        self.give_up("scheduling was resumed before everything under way was finished")
        self.mode = None
        self._scheduler.go_on()

    def settle(self) -> None:
        """Something may have ended: answer those who wait for that."""
        if self._draining and not self._scheduler.under_way:
            for deferred in self._draining:
                deferred.settle()
            self._draining = []

    def give_up(self, why: str) -> None:
        """Nobody will be told that all is finished, and this is why."""
        for deferred in self._draining:
            deferred.settle(failure=why)
        self._draining = []
