"""Makes a failing plan smaller while it keeps failing in the same way, under noise.

A reduction is kept only if the same failure comes back in every one of several runs; a plan that fails by luck is not
a smaller plan. The order of reductions is fixed, so the same plan shrinks the same way, and the number of runs is
bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import islice

from msgspec import Struct, structs

from harness.faults import (
    AtInstant,
    BlockLoop,
    Delay,
    Fault,
    Flood,
    Lag,
    LastingFault,
    OnClient,
    OnFrames,
    SlowReader,
    Stop,
)
from harness.faults.frames import FramesFault
from harness.instant import Instant
from harness.plan import Plan, PlanError, Request, Topology, Workload, check
from harness.trial import repeat, trials
from harness.verdict import Verdict
from harness.world import World

REPEATS = 3
MAX_RUNS = 90

# The longest first: what waits longer repeats better.
_ROUND_SECONDS = (1.0, 0.3, 0.1)


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
    is confirmed. ``allowed`` raises PlanError for a plan that the target cannot run.
    """

    def __init__(
        self,
        world: World,
        same: Callable[[Verdict], bool],
        *,
        repeats: int = REPEATS,
        max_runs: int = MAX_RUNS,
        width: int = 4,
        allowed: Callable[[Plan], None] = check,
    ) -> None:
        self._world = world
        self._same = same
        self._repeats = repeats
        self._max_runs = max_runs
        self._width = width
        self._allowed = allowed
        self._runs = 0

    def shrink(self, plan: Plan) -> Shrunk:
        """Ever smaller plans that fail like ``plan``, within the bound on runs."""
        steady = self._steady(plan)
        if steady is None:
            return Shrunk((), self._runs)
        kept, tried = [steady], {steady.digest}
        while (smaller := self._step(kept[-1], tried)) is not None:
            kept.append(smaller)
        return Shrunk(tuple(kept), self._runs)

    def _steady(self, plan: Plan) -> Plan | None:
        """The plan itself if its failure repeats; else the first variant with longer times whose failure does.

        A fault of 20 ms may win a race once; the same fault for a second wins it every time.
        """
        return next((variant for variant in (plan, *steadier(plan)) if self._confirmed(variant, self._repeats)), None)

    def _step(self, plan: Plan, tried: set[str]) -> Plan | None:
        candidates = self._candidates(plan, tried)
        while chunk := list(islice(candidates, max(1, min(self._width, self._max_runs - self._runs)))):
            if self._runs + len(chunk) > self._max_runs:
                return None
            failing = self._failing(chunk)
            for candidate in chunk:
                if candidate.digest in failing and self._confirmed(candidate, self._repeats - 1):
                    return candidate
        return None

    def _candidates(self, plan: Plan, tried: set[str]) -> Iterator[Plan]:
        for candidate in reductions(plan):
            if candidate.digest in tried:
                continue
            tried.add(candidate.digest)
            try:
                self._allowed(candidate)
            except PlanError:
                continue
            yield candidate

    def _failing(self, chunk: Sequence[Plan]) -> set[str]:
        self._runs += len(chunk)
        with closing(trials(self._world, chunk)) as runs:
            return {trial.plan.digest for trial in runs if self._same(trial.verdict)}

    def _confirmed(self, plan: Plan, runs: int) -> bool:
        try:
            self._allowed(plan)
        except PlanError:
            return False
        if self._runs + runs > self._max_runs:
            return False
        self._runs += runs
        with closing(repeat(self._world, plan, runs)) as again:
            return all(self._same(trial.verdict) for trial in again)


def steadier(plan: Plan) -> Iterator[Plan]:
    """Plans whose faults last longer: each fault that takes time alone, then all together."""
    for fault in plan.faults:
        if isinstance(fault, Delay | LastingFault | Lag | Stop):
            yield _with_faults(plan, [_lasting(fault)])
    yield _with_faults(plan, [_lasting(fault) for fault in plan.faults])


def _lasting(fault: Fault) -> Fault:
    longest = _ROUND_SECONDS[0]
    if isinstance(fault, Delay | Lag | Stop) and fault.seconds is not None:
        return structs.replace(fault, seconds=max(longest, fault.seconds))
    if isinstance(fault, LastingFault) and fault.or_after is not None:
        return structs.replace(fault, until=None, or_after=max(longest, fault.or_after))
    return fault


def reductions(plan: Plan) -> Iterator[Plan]:
    """Every plan that is one step simpler, the boldest steps first."""
    yield from _fewer_faults(plan)
    yield from _fewer_ranks(plan)
    yield from _less_work(plan)
    for index, fault in enumerate(plan.faults):
        for simpler in _simpler(fault):
            yield _with_faults(plan, [*plan.faults[:index], simpler, *plan.faults[index + 1 :]])
    if plan.observe:
        yield structs.replace(plan, observe=())
    if any(fault.optional for fault in plan.faults):
        # A replay whose fault did not fire should be vacuous, not passed.
        yield _with_faults(plan, [structs.replace(fault, optional=False) for fault in plan.faults])


def _with_faults(plan: Plan, faults: Sequence[Fault]) -> Plan:
    return structs.replace(plan, faults=tuple(faults))


def _fewer_faults(plan: Plan) -> Iterator[Plan]:
    if not plan.faults:
        return
    yield _with_faults(plan, [])
    if len(plan.faults) > 2:
        for fault in plan.faults:
            yield _with_faults(plan, [fault])
    if len(plan.faults) > 1:
        for index in range(len(plan.faults)):
            yield _with_faults(plan, [*plan.faults[:index], *plan.faults[index + 1 :]])


def _fewer_ranks(plan: Plan) -> Iterator[Plan]:
    for tp in range(1, plan.topology.tp):
        names = {f"dp0.rank{rank}": f"dp0.rank{tp - 1}" for rank in range(tp, plan.topology.tp)}
        topology = Topology(tp=tp, start=plan.topology.start)
        faults = tuple(_renamed(fault, names) for fault in plan.faults)
        yield structs.replace(plan, topology=topology, faults=faults, observe=plan.observe if tp > 1 else ())


def _renamed(fault: Fault, names: dict[str, str]) -> Fault:
    def move(at: Instant) -> Instant:
        return Instant(names.get(at.role, at.role), at.site, at.kind, at.n, at.side)

    if isinstance(fault, Stop):
        also = dict.fromkeys(names.get(role, role) for role in fault.also)
        at = move(fault.at)
        return structs.replace(fault, at=at, also=tuple(role for role in also if role != at.role))
    if isinstance(fault, AtInstant):
        return structs.replace(fault, at=move(fault.at))
    if isinstance(fault, OnClient):
        return fault
    victim = names.get(fault.victim, fault.victim)
    if isinstance(fault, LastingFault):
        return structs.replace(fault, victim=victim, until=move(fault.until) if fault.until else None)
    return structs.replace(fault, victim=victim)


def _less_work(plan: Plan) -> Iterator[Plan]:
    requests = plan.workload.requests
    if len(requests) > 1:
        for request in requests:
            yield _with_requests(plan, [request])
    for index, request in enumerate(requests):
        for smaller in _smaller(request):
            yield _with_requests(plan, [*requests[:index], smaller, *requests[index + 1 :]])


def _with_requests(plan: Plan, requests: Sequence[Request]) -> Plan:
    return structs.replace(plan, workload=Workload(requests=tuple(requests)))


def _smaller(request: Request) -> Iterator[Request]:
    for tokens in dict.fromkeys((1, 2, request.max_tokens // 2)):
        if 0 < tokens < request.max_tokens:
            yield structs.replace(request, max_tokens=tokens)
    if request.prompt != (1,):
        yield structs.replace(request, prompt=(1,))
    if request.at != "ready":
        yield structs.replace(request, at="ready")
    if request.after:
        yield structs.replace(request, after=0.0)


def _simpler(fault: Fault) -> Iterator[Fault]:
    if isinstance(fault, AtInstant) and fault.at.n > 1:
        at = fault.at
        yield structs.replace(fault, at=Instant(at.role, at.site, at.kind, 1, at.side))
    if isinstance(fault, OnClient) and fault.request:
        yield structs.replace(fault, request=0)
    if isinstance(fault, Flood) and fault.count > 1:
        yield structs.replace(fault, count=fault.count // 2)
    if isinstance(fault, Delay | Lag | Stop | BlockLoop | SlowReader):
        for seconds in _round(fault.seconds):
            yield structs.replace(fault, seconds=seconds)
    if isinstance(fault, Stop):
        for role in fault.also:
            yield structs.replace(fault, also=tuple(other for other in fault.also if other != role))
    if isinstance(fault, OnFrames) and fault.nth > 1:
        yield structs.replace(fault, nth=1)
    if isinstance(fault, OnFrames):
        for filtered in ({"direction": "either"}, {"connection": None}, {"match": None}):
            if (wider := structs.replace(fault, **filtered)) != fault:
                yield wider
    if isinstance(fault, FramesFault) and fault.count > 1:
        yield structs.replace(fault, count=1)
    if isinstance(fault, LastingFault):
        if fault.until is not None and fault.or_after is not None:
            yield structs.replace(fault, until=None)
        for seconds in _round(fault.or_after):
            yield structs.replace(fault, or_after=seconds)


def _round(seconds: float | None) -> tuple[float, ...]:
    return () if seconds is None or seconds in _ROUND_SECONDS else _ROUND_SECONDS
