"""Guided plans: near those that brought something new, more are drawn.

Hypothesis runs whole climbs: some plans at random, then changes of the most novel of them, one choice at a time
(`hypothesis.target`). It waits for each plan to be run and judged before it chooses the next, so as many climbs go on
at once as there are lanes. What is due in between is drawn freely, and is the same for the same seed; what a climb
comes to depends on the order of events, which no seed decides.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from hypothesis import HealthCheck, Phase, given, settings, target
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from harness.plan import Plan
from harness.search.drawing import FAR
from harness.search.novelty import Novelty
from harness.trial import Trial
from harness.verdict import EXIT_FAILED

CLIMB = 24
"""Plans of one climb; half of them are drawn at random, and the rest are changes of the best."""


class _PlanFailedError(AssertionError):
    """What Hypothesis is told of a plan that failed."""


class _Asked:
    """A plan that a climb waits for. ``novelty`` is -1 for a failure."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.novelty = 0
        self.answered = threading.Event()

    def answer(self, novelty: int) -> None:
        self.novelty = novelty
        self.answered.set()


class Guide:
    """An iterator of plans: those of ``free``, and between them what ``climbs`` climbs offer.

    Tell it each trial as it ends. Use it as a context manager: the climbs are threads, which end with it.
    """

    def __init__(
        self,
        free: Iterator[Plan],
        strategy: SearchStrategy[Plan],
        seed: int,
        climbs: int,
    ) -> None:
        self.novelty = Novelty()
        self._free = free
        self._strategy = strategy
        self._seed = seed
        self._offered: queue.SimpleQueue[_Asked] = queue.SimpleQueue()
        self._asked: dict[str, _Asked] = {}
        self._failed: dict[str, bool] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._was_free = False
        self._threads = [
            threading.Thread(target=self._climb, args=(number,), name=f"climb-{number}", daemon=True)
            for number in range(climbs)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._closed = True
            for asked in self._asked.values():
                asked.answer(0)
        for thread in self._threads:
            thread.join()

    def __iter__(self) -> Iterator[Plan]:
        return self

    def __next__(self) -> Plan:
        """What a climb waits for, after each free plan; else the next free one."""
        if self._was_free and not self._offered.empty():
            self._was_free = False
            return self._offered.get().plan
        self._was_free = True
        return next(self._free)

    def tell(self, trial: Trial) -> None:
        """A plan has been run: counts what was new in it, and lets the climb go on that waits for it."""
        new = self.novelty.of(trial.history)
        failed = trial.verdict.exit_code == EXIT_FAILED
        with self._lock:
            self._failed[trial.plan.digest] = failed
            asked = self._asked.pop(trial.plan.digest, None)
        if asked is not None:
            asked.answer(-1 if failed else new)

    def _climb(self, number: int) -> None:
        climb = 0
        while not self._closed:
            self._once(f"{self._seed}/climb {number}/{climb}")
            climb += 1

    def _once(self, seed: str) -> None:
        @seeded(seed)
        @settings(
            max_examples=CLIMB,
            database=None,
            derandomize=False,
            phases=[Phase.generate, Phase.target],
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.integers(FAR, FAR + 0xFFFF), self._strategy)
        def climb(spare: int, plan: Plan) -> None:
            novelty = self._run(plan)
            if novelty < 0:
                raise _PlanFailedError(plan.digest)
            target(float(novelty), label="new meetings")

        with contextlib.suppress(_PlanFailedError):
            climb()

    def _run(self, plan: Plan) -> int:
        """How much was new in a run of the plan, 0 if it has been run before or nothing is run any more."""
        with self._lock:
            if plan.digest in self._failed:
                return -1 if self._failed[plan.digest] else 0
            if self._closed or plan.digest in self._asked:
                return 0
            asked = self._asked[plan.digest] = _Asked(plan)
        self._offered.put(asked)
        asked.answered.wait()
        return asked.novelty
