"""Hypothesis strategies for plans. One example is one plan.

Every fault drawn is optional, since a kill may come before the instant of the next fault, and each is drawn from what a
run of that size passes for certain, so that a plan seldom proves nothing. Which kinds of fault a plan may hold is drawn
first (swarm testing: Groce et al., ISSTA 2012), since plans that mix everything hide what only a pure mix reaches.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from harness.faults import (
    DRAWN,
    KINDS,
    AbortRace,
    Cancel,
    Close,
    Delay,
    Drop,
    DropClient,
    Fault,
    Hold,
    Kill,
    SlowReader,
    Stop,
)
from harness.faults.abort_race import When
from harness.faults.cancel import At
from harness.instant import Instant
from harness.plan import MAX_TP, EngineOptions, Plan, PlanError, Request, Topology, Workload
from harness.search import sites
from harness.search.phases import BUDGET

DELAY_TOTAL = 0.48
"""Seconds that all delays, holds and stops of a plan take together after start-up: half of the short step deadline.

What merely takes time must be served, so a plan may not add up to more than the engine promises to bear.
"""

_PROMPTS = ((1,), (1, 2, 3), (7, 8), (200, 1, 1, 2), (5, 4, 3, 2, 1), (9, 99, 255, 3, 31, 17))
"""What is asked. The tokens of a prompt matter to no fault, and a few prompts need the reference only once each."""

_ABORTS: tuple[When, ...] = ("stranger", "before_add", "after_add", "first_token", "last_token", "finish")
_CANCELS: tuple[At, ...] = ("read", "add", "start", "tick")
_CLOSES: tuple[Literal["aclose", "break"], ...] = ("aclose", "break")
_PACE = 0.05
"""Seconds for which a slow reader keeps each token: several steps of the engine."""

T = TypeVar("T")

_START_TICKS = 30
_FRAME_KINDS = ("drop", "hold")
_STREAM_KINDS = ("close", "slow_reader", "drop_client")
"""What is done to a stream between two of its tokens, and needs a request with two."""

_CLIENT_KINDS = ("cancel", "abort_race", *_STREAM_KINDS)
_TICK = 0.01
_TICKS = round(DELAY_TOTAL / _TICK)


def plans(
    *,
    tp: int | tuple[int, int] = (1, MAX_TP),
    faults: Sequence[str] | None = None,
    relay: str | None = None,
    max_faults: int = 4,
    target: str = "engine",
    start: str = "fork",
) -> SearchStrategy[Plan]:
    """Plans with 1 to 3 requests and up to ``max_faults`` faults.

    ``tp`` is a number of ranks or the least and the most; ``faults`` the kinds to draw from (default `DRAWN`; empty for
    plans that break nothing); ``relay`` the strategy of the relay (default: the target's own). Raises PlanError.
    """
    low, high = (tp, tp) if isinstance(tp, int) else tp
    if not 1 <= low <= high <= MAX_TP:
        raise PlanError(f"tp: {low}..{high}; plans run with 1 to {MAX_TP} ranks")
    kinds = tuple(DRAWN) if faults is None else tuple(dict.fromkeys(faults))
    for kind in kinds:
        if kind not in DRAWN:
            known = f"'{kind}' is for plan files" if kind in KINDS else f"no kind '{kind}'"
            raise PlanError(f"faults: {known}; drawn are {', '.join(DRAWN)}")
    if kinds and all(kind in _FRAME_KINDS for kind in kinds):
        low = max(low, 2)
        if high < 2:
            raise PlanError(f"faults: {', '.join(kinds)} need a relay, and tp=1 has none")
    options = EngineOptions() if relay is None else EngineOptions(relay=relay)
    return _plans(
        low, high, kinds, options, max_faults, target, Topology(start="spawn" if start == "spawn" else "fork")
    )


@st.composite
def _plans(
    draw: DrawFn,
    low: int,
    high: int,
    kinds: tuple[str, ...],
    options: EngineOptions,
    max_faults: int,
    target: str,
    topology: Topology,
) -> Plan:
    chooser = _Chooser(draw)
    ranks = chooser.number(low, high)
    requests = tuple(chooser.request() for _ in range(chooser.number(1, 3)))
    streams = any(request.max_tokens > 1 for request in requests)
    unusable = (*(_FRAME_KINDS if ranks == 1 else ()), *(() if streams else _STREAM_KINDS))
    usable = tuple(kind for kind in kinds if kind not in unusable)
    chosen: tuple[Fault, ...] = ()
    if usable and max_faults > 0:
        swarm = [kind for kind in usable if chooser.whether()] or [chooser.of(usable)]
        count = chooser.number(1, max_faults)
        passed = _Passed(chooser, ranks, options.relay, requests, max(1, _TICKS // count))
        chosen = tuple(passed.fault(chooser.of(swarm)) for _ in range(count))
    return Plan(
        topology=Topology(tp=ranks, start=topology.start),
        engine=options,
        workload=Workload(requests=requests),
        faults=chosen,
        observe=("relay",) if ranks > 1 else (),
        budget=BUDGET,
        target=target,
    )


FAR = 0x6E6F_7765_6467_6501
"""Where drawn integers begin.

Hypothesis mixes constants that it finds in the modules loaded so far into the integers that it draws, so that a seed
would draw other plans in a terminal than in a test. No program holds constants of this size.
"""


@lru_cache(maxsize=256)
def _index(size: int) -> SearchStrategy[int]:
    return st.integers(FAR, FAR + size - 1)


class _Chooser:
    """Choices that shrink to the first item and are the same for the same seed, whatever has been imported.

    Each is one draw from a strategy that is made once: strategies built anew for each plan cost more than its run.
    """

    def __init__(self, draw: DrawFn) -> None:
        self._draw = draw

    def of(self, items: Sequence[T]) -> T:
        return items[self._draw(_index(len(items))) - FAR]

    def number(self, least: int, most: int) -> int:
        return self.of(range(least, most + 1))

    def whether(self) -> bool:
        return self.number(0, 1) == 1

    def request(self) -> Request:
        return Request(
            prompt=self.of(_PROMPTS), max_tokens=self.number(1, 6), at="previous" if self.whether() else "ready"
        )


class _Passed:
    """Chooses faults from what a run of ``ranks`` ranks and of these requests passes for certain.

    None that takes time in steady state takes more than ``ticks`` hundredths of a second.
    """

    def __init__(self, chooser: _Chooser, ranks: int, relay: str, requests: Sequence[Request], ticks: int) -> None:
        steps = requests[0].max_tokens
        self._chooser = chooser
        self._requests = requests
        self._roles = tuple(f"dp0.rank{rank}" for rank in range(ranks))
        self._frames = sites.frames(relay) if ranks > 1 else ()
        self._instants = sites.instants(ranks, relay, steps)
        self._clients = sites.client_instants(steps)
        self._steps = sites.certain_steps(relay, steps)
        self._ticks = ticks

    def fault(self, kind: str) -> Fault:
        """A fault of a kind."""
        choose = self._chooser
        if kind in _CLIENT_KINDS:
            return self._client_fault(kind)
        if kind in ("delay", "stop"):
            pauses = Delay if kind == "delay" else Stop
            if choose.whether():
                return pauses(at=self._instant(), seconds=self._seconds(self._ticks), optional=True)
            start = Instant(choose.of(self._roles), "start")
            return pauses(at=start, seconds=self._seconds(_START_TICKS), optional=True)
        if kind == "kill":
            return Kill(at=self._instant(self._clients), optional=True)
        (link, frame), victim = choose.of(self._frames), choose.of(self._roles[1:])
        # Only step frames come a known number of times; of hellos there may be one.
        nth = choose.number(1, self._steps) if frame == "step" else 1
        if kind == "drop":
            return Drop(link=link, frame=frame, victim=victim, nth=nth, optional=True)
        until = choose.of(self._instants) if choose.whether() else None
        after = self._seconds(self._ticks)
        return Hold(link=link, frame=frame, victim=victim, nth=nth, until=until, or_after=after, optional=True)

    def _instant(self, further: Sequence[Instant] = ()) -> Instant:
        """An instant of the work or of the ``further`` ones; one in five is of the demand at the end."""
        late = self._chooser.number(1, 5) == 5
        return self._chooser.of(sites.late_instants() if late else (*self._instants, *further))

    def _client_fault(self, kind: str) -> Fault:
        """A fault by the client's own hand, at a moment of a request that has it."""
        choose = self._chooser
        least = 2 if kind in _STREAM_KINDS else 1
        number = choose.of([n for n, request in enumerate(self._requests) if request.max_tokens >= least])
        if kind == "abort_race":
            return AbortRace(request=number, when=choose.of(_ABORTS), optional=True)
        most = self._requests[number].max_tokens - 1
        if kind == "cancel":
            during = choose.of(_CANCELS)
            tokens = 0 if during in ("start", "add") else choose.number(0, most)
            return Cancel(request=number, after_tokens=tokens, during=during, optional=True)
        tokens = choose.number(1, most)
        if kind == "close":
            how = choose.of(_CLOSES)
            return Close(request=number, after_tokens=tokens, how=how, optional=True)
        if kind == "slow_reader":
            return SlowReader(request=number, after_tokens=tokens, seconds=_PACE, optional=True)
        return DropClient(request=number, after_tokens=tokens, optional=True)

    def _seconds(self, ticks: int) -> float:
        return round(self._chooser.number(1, ticks) * _TICK, 2)
