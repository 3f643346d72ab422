"""Makes a failing plan smaller while it keeps failing in the same way, under noise.

Whether a reduction still fails is decided by a sequential test over its runs (Wald 1947): one run that ends otherwise,
as on a machine that is busy with other things, costs further runs and not the reduction; a plan that fails by luck now
and then is not a smaller plan. What did not fail at first gets a second look when nothing else is left. The number of
runs is bounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import islice

from msgspec import Struct

from harness.plan import Plan, PlanError, check
from harness.reductions import reductions, steadier
from harness.trial import repeat, trials
from harness.verdict import Verdict
from harness.world import World

MAX_RUNS = 150

SURE, BY_LUCK = 0.9, 0.3
"""The shares of runs with the same failure that are told apart: at least that, or at most this."""

ERROR = 0.05
"""How often the test may be wrong, either way, at those shares."""

ENOUGH = 12
"""Runs after which a plan that lies between counts as failing by luck."""


class Evidence:
    """What the runs of one plan say so far."""

    def __init__(self) -> None:
        self.runs = 0
        self._ratio = 0.0  # logarithm of the likelihood ratio

    def saw(self, same: bool) -> None:
        """One more run: whether it ended with the same failure."""
        self.runs += 1
        self._ratio += math.log(SURE / BY_LUCK) if same else math.log((1 - SURE) / (1 - BY_LUCK))

    @property
    def decided(self) -> bool | None:
        """Whether the plan fails in the same way; None while that is open."""
        bound = math.log((1 - ERROR) / ERROR)
        if abs(self._ratio) < bound and self.runs < ENOUGH:
            return None
        return self._ratio >= bound


class Shrunk(Struct, frozen=True):
    """The plans that were kept, each smaller than the one before, and how many runs that took.

    Empty if the failure came back neither by itself nor with longer times.
    """

    kept: tuple[Plan, ...]
    runs: int

    @property
    def plan(self) -> Plan:
        """The smallest."""
        return self.kept[-1]


class Shrinker:
    """Shrinks one plan in a world. ``same`` says whether a verdict is the failure that has to stay.

    ``width`` reductions are tried at a time (as many as there are lanes); of those that still fail, the first in order
    is decided on. ``allowed`` raises PlanError for a plan that the target cannot run.
    """

    def __init__(
        self,
        world: World,
        same: Callable[[Verdict], bool],
        *,
        max_runs: int = MAX_RUNS,
        width: int = 4,
        allowed: Callable[[Plan], None] = check,
    ) -> None:
        self._world = world
        self._same = same
        self._max_runs = max_runs
        self._width = width
        self._allowed = allowed
        self._runs = 0
        self._evidence: dict[str, Evidence] = {}

    def shrink(self, plan: Plan) -> Shrunk:
        """Ever smaller plans that fail like ``plan``, within the bound on runs."""
        steady = self._steady(plan)
        if steady is None:
            return Shrunk((), self._runs)
        kept = [steady]
        while (smaller := self._step(kept[-1])) is not None:
            kept.append(smaller)
        return Shrunk(tuple(kept), self._runs)

    def _steady(self, plan: Plan) -> Plan | None:
        """The plan itself if its failure repeats; else the first variant with longer times whose failure does.

        A fault of 20 ms may win a race once; the same fault for a second wins it every time.
        """
        return next((each for each in (plan, *steadier(plan)) if self._is_allowed(each) and self._fails(each)), None)

    def _step(self, plan: Plan) -> Plan | None:
        """The first reduction that still fails; those that did not fail are looked at twice."""
        for looks in (1, 2):
            candidates = self._candidates(plan, looks)
            while chunk := list(islice(candidates, self._width)):
                if self._runs + len(chunk) > self._max_runs:
                    return None
                failing = self._look(chunk)
                for candidate in chunk:
                    if candidate.digest in failing and self._fails(candidate):
                        return candidate
        return None

    def _candidates(self, plan: Plan, looks: int) -> Iterator[Plan]:
        """The reductions that are open and have not been looked at so often."""
        seen = set()
        for candidate in reductions(plan):
            evidence = self._of(candidate)
            if candidate.digest in seen or evidence.runs >= looks or evidence.decided is not None:
                continue
            seen.add(candidate.digest)
            if self._is_allowed(candidate):
                yield candidate

    def _is_allowed(self, plan: Plan) -> bool:
        try:
            self._allowed(plan)
        except PlanError:
            return False
        return True

    def _of(self, plan: Plan) -> Evidence:
        return self._evidence.setdefault(plan.digest, Evidence())

    def _look(self, plans: Sequence[Plan]) -> set[str]:
        """Runs each plan once; the digests of those that failed in the same way."""
        self._runs += len(plans)
        failing = set()
        with closing(trials(self._world, plans)) as runs:
            for trial in runs:
                same = self._same(trial.verdict)
                self._of(trial.plan).saw(same)
                if same:
                    failing.add(trial.plan.digest)
        return failing

    def _fails(self, plan: Plan) -> bool:
        """Whether the plan fails in the same way, from as many runs as it takes, a few at a time."""
        evidence = self._of(plan)
        while evidence.decided is None:
            count = min(self._width, self._max_runs - self._runs)
            if count < 1:
                return False
            self._runs += count
            with closing(repeat(self._world, plan, count)) as again:
                for trial in again:
                    evidence.saw(self._same(trial.verdict))
        return evidence.decided
