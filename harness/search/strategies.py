"""Hypothesis strategies for plans. One example is one plan.

Every fault drawn is optional, since a kill may come before the instant of the next fault, and each is drawn from what a
run of that size passes for certain, so that a plan seldom proves nothing. Which kinds of fault a plan may hold is drawn
first (swarm testing: Groce et al., ISSTA 2012), since plans that mix everything hide what only a pure mix reaches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from harness.faults import KINDS, Delay, Drop, Fault, Hold, Kill
from harness.instant import Instant
from harness.plan import MAX_TP, EngineOptions, Plan, PlanError, Request, Topology, Workload
from harness.search import sites

BUDGET = 20.0
"""Seconds for one generated plan: far above the sum of the short timeouts, so that it is never the engine's own."""

DELAY_TOTAL = 0.48
"""Seconds that all delays and holds of a plan may take together after start-up: half of the short step deadline.

What merely takes time must be served, so a plan may not add up to more than the engine promises to bear.
"""

T = TypeVar("T")

_START_DELAY = 30
_FRAME_KINDS = ("drop", "hold")
_TICK = 0.01


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

    ``tp`` is a number of ranks or the least and the most; ``faults`` the kinds to draw from (default all; empty for
    plans that break nothing); ``relay`` the strategy of the relay (default: the target's own). Raises PlanError.
    """
    low, high = (tp, tp) if isinstance(tp, int) else tp
    if not 1 <= low <= high <= MAX_TP:
        raise PlanError(f"tp: {low}..{high}; plans run with 1 to {MAX_TP} ranks")
    kinds = tuple(KINDS) if faults is None else tuple(dict.fromkeys(faults))
    for kind in kinds:
        if kind not in KINDS:
            raise PlanError(f"faults: no kind '{kind}'; there are {', '.join(KINDS)}")
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
    ranks = draw(_pick(range(low, high + 1)), label="tp")
    requests = tuple(draw(st.lists(_requests(), min_size=1, max_size=3), label="requests"))
    usable = tuple(kind for kind in kinds if ranks > 1 or kind not in _FRAME_KINDS)
    chosen: tuple[Fault, ...] = ()
    if usable and max_faults > 0:
        swarm = [kind for kind in usable if draw(st.booleans(), label=kind)] or [draw(_pick(usable), label="kind")]
        count = draw(_pick(range(1, max_faults + 1)), label="count")
        passed = _Sites(ranks, options.relay, steps=requests[0].max_tokens)
        longest = max(1, int(DELAY_TOTAL / _TICK) // count)
        chosen = tuple(draw(passed.fault(draw(_pick(swarm)), longest)) for _ in range(count))
    return Plan(
        topology=Topology(tp=ranks, start=topology.start),
        engine=options,
        workload=Workload(requests=requests),
        faults=chosen,
        observe=("relay",) if ranks > 1 else (),
        budget=BUDGET,
        target=target,
    )


def _requests() -> SearchStrategy[Request]:
    return st.builds(
        Request,
        prompt=st.lists(_pick(range(1, 256)), min_size=1, max_size=6).map(tuple),
        max_tokens=_pick(range(1, 7)),
        at=_pick(("ready", "previous")),
    )


class _Sites:
    """What a run of ``ranks`` ranks and at least ``steps`` steps passes for certain, as strategies for faults."""

    def __init__(self, ranks: int, relay: str, steps: int) -> None:
        self._roles = tuple(f"dp0.rank{rank}" for rank in range(ranks))
        self._frames = sites.frames(relay) if ranks > 1 else ()
        self._instants = sites.instants(ranks, relay, steps)
        self._steps = steps

    def fault(self, kind: str, longest: int) -> SearchStrategy[Fault]:
        """Faults of a kind; none that takes time in steady state takes more than ``longest`` hundredths of a second."""
        return {"delay": self._delays, "kill": self._kills, "drop": self._drops, "hold": self._holds}[kind](longest)

    def _delays(self, longest: int) -> SearchStrategy[Fault]:
        at_start = st.builds(
            Delay,
            at=_pick(self._roles).map(lambda role: Instant(role, "start")),
            seconds=_seconds(_START_DELAY),
            optional=st.just(True),
        )
        later = st.builds(Delay, at=self._at(), seconds=_seconds(longest), optional=st.just(True))
        return st.booleans().flatmap(lambda steady: later if steady else at_start)

    def _kills(self, longest: int) -> SearchStrategy[Fault]:
        return st.builds(Kill, at=self._at(), optional=st.just(True))

    def _drops(self, longest: int) -> SearchStrategy[Fault]:
        return self._frame().flatmap(
            lambda frame: st.builds(
                Drop,
                link=st.just("relay"),
                frame=st.just(frame),
                victim=_pick(self._roles[1:]),
                nth=self._nth(frame),
                optional=st.just(True),
            )
        )

    def _holds(self, longest: int) -> SearchStrategy[Fault]:
        return self._frame().flatmap(
            lambda frame: st.builds(
                Hold,
                link=st.just("relay"),
                frame=st.just(frame),
                victim=_pick(self._roles[1:]),
                nth=self._nth(frame),
                until=st.booleans().flatmap(lambda ends: self._at() if ends else st.none()),
                or_after=_seconds(longest),
                optional=st.just(True),
            )
        )

    def _at(self) -> SearchStrategy[Instant]:
        return _pick(self._instants)

    def _frame(self) -> SearchStrategy[str]:
        return _pick(self._frames)

    def _nth(self, frame: str) -> SearchStrategy[int]:
        # Only step frames come a known number of times; of hellos there may be one.
        return _pick(range(1, (self._steps if frame == "step" else 1) + 1))


def _seconds(longest: int) -> SearchStrategy[float]:
    return _pick(range(1, longest + 1)).map(lambda ticks: round(ticks * _TICK, 2))


# Hypothesis mixes constants that it finds in the modules loaded so far into the integers that it draws, so that a seed
# would draw other plans in a terminal than in a test. No program holds constants of this size.
_FAR = 0x6E6F_7765_6467_6501


def _pick(items: Sequence[T]) -> SearchStrategy[T]:
    """One of the items; shrinks to the first. The same for the same seed, whatever has been imported."""
    return st.integers(_FAR, _FAR + len(items) - 1).map(lambda index: items[index - _FAR])
