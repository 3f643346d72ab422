"""Reductions: every plan that is one step simpler than a plan, and those whose faults last longer.

Pure: nothing is run here. The order is fixed, the boldest steps first, so the same plan shrinks the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import structs

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
from harness.plan import Plan, Request, Topology

_REQUESTS = ("request", "reuse")
"""The settings of faults that are numbers of requests."""

# The longest first: what waits longer repeats better.
_ROUND_SECONDS = (1.0, 0.3, 0.1)


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
    yield from _fewer_settings(plan)
    if any(fault.optional for fault in plan.faults):
        # A replay whose fault did not fire should be vacuous, not passed.
        yield _with_faults(plan, [structs.replace(fault, optional=False) for fault in plan.faults])


def _fewer_settings(plan: Plan) -> Iterator[Plan]:
    """Without what the target is told beyond its defaults, all at once and one by one."""
    config = plan.engine.config
    if len(config) > 1:
        yield _with_config(plan, {})
    for name in config:
        yield _with_config(plan, {other: value for other, value in config.items() if other != name})
    if plan.observe:
        yield structs.replace(plan, observe=())
    if plan.seed:
        yield structs.replace(plan, seed=0)


def _with_config(plan: Plan, config: dict[str, bool | int | float | str]) -> Plan:
    return structs.replace(plan, engine=structs.replace(plan.engine, config=config))


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
    for index in range(len(plan.workload.utilities)):
        fewer = plan.workload.utilities[:index] + plan.workload.utilities[index + 1 :]
        yield structs.replace(plan, workload=structs.replace(plan.workload, utilities=fewer))
    yield from _fewer_requests(plan)
    for index, request in enumerate(requests):
        for smaller in _smaller(request):
            yield _with_requests(plan, [*requests[:index], smaller, *requests[index + 1 :]])


def _fewer_requests(plan: Plan) -> Iterator[Plan]:
    """With one request, with either half, and without each. What a fault is done to has to stay."""
    count = len(plan.workload.requests)
    if count < 2:
        return
    half = count // 2
    some = [(index,) for index in range(count)] + [tuple(range(half)), tuple(range(half, count))]
    some += [tuple(other for other in range(count) if other != index) for index in range(count)]
    for kept in dict.fromkeys(some):
        number = {before: after for after, before in enumerate(kept)}
        faults = [_renumbered(fault, number) for fault in plan.faults]
        if None not in faults:
            fewer = structs.replace(plan, faults=tuple(fault for fault in faults if fault is not None))
            yield _with_requests(fewer, [plan.workload.requests[index] for index in kept])


def _renumbered(fault: Fault, number: dict[int, int]) -> Fault | None:
    """The fault, of requests that have other numbers now; None if one of them is gone."""
    named = {name: value for name in _REQUESTS if isinstance(value := getattr(fault, name, None), int)}
    if any(value not in number for value in named.values()):
        return None
    return structs.replace(fault, **{name: number[value] for name, value in named.items()})


def _with_requests(plan: Plan, requests: Sequence[Request]) -> Plan:
    return structs.replace(plan, workload=structs.replace(plan.workload, requests=tuple(requests)))


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
