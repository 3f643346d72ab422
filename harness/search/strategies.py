"""Hypothesis strategies for plans. One example is one plan.

Every fault drawn is optional, since a kill may come before the instant of the next fault, and each is drawn from what a
run of that size passes for certain, so that a plan seldom proves nothing. Which kinds of fault a plan may hold is drawn
first (swarm testing: Groce et al., ISSTA 2012), since plans that mix everything hide what only a pure mix reaches.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from harness.faults import DRAWN, KINDS, Fault
from harness.plan import MAX_TP, EngineOptions, Plan, PlanError, Request, Topology, Workload
from harness.search.drawing import DRAWERS, ON_COLLECTIVES, ON_FRAMES, TICK, Chooser, Situation
from harness.search.passage import Passages, of_table
from harness.search.phases import BUDGET

DELAY_TOTAL = 0.48
"""Seconds that all delays, holds and stops of a plan take together after start-up: half of the short step deadline.

What merely takes time must be served, so a plan may not add up to more than the engine promises to bear.
"""

_PROMPTS = ((1,), (1, 2, 3), (7, 8), (200, 1, 1, 2), (5, 4, 3, 2, 1), (9, 99, 255, 3, 31, 17))
"""What is asked. The tokens of a prompt matter to no fault, and a few prompts need the reference only once each."""

_TICKS = round(DELAY_TOTAL / TICK)

_WEIGHTS = {2: 3}
"""How much more often a number of ranks is drawn: two show most of what there is, at the least cost."""


def plans(
    *,
    tp: int | tuple[int, int] = (1, MAX_TP),
    faults: Sequence[str] | None = None,
    relay: str | Sequence[str] | None = None,
    max_faults: int = 4,
    target: str = "engine",
    start: str = "fork",
    passages: Passages = of_table,
) -> SearchStrategy[Plan]:
    """Plans with 1 to 3 requests and up to ``max_faults`` faults.

    ``tp`` is a number of ranks or the least and the most; ``faults`` the kinds to draw from (default `DRAWN`; empty for
    plans that break nothing); ``relay`` the strategy of the relay (default: the target's own), or those to draw from.
    ``passages`` say what runs pass, and so where faults can stand. Raises PlanError.
    """
    low, high = (tp, tp) if isinstance(tp, int) else tp
    if not 1 <= low <= high <= MAX_TP:
        raise PlanError(f"tp: {low}..{high}; plans run with 1 to {MAX_TP} ranks")
    kinds = tuple(DRAWN) if faults is None else tuple(dict.fromkeys(faults))
    for kind in kinds:
        if kind not in DRAWN:
            known = f"'{kind}' is for plan files" if kind in KINDS else f"no kind '{kind}'"
            raise PlanError(f"faults: {known}; drawn are {', '.join(DRAWN)}")
    if kinds and all(kind in _AMONG_RANKS for kind in kinds):
        low = max(low, 2)
        if high < 2:
            raise PlanError(f"faults: {', '.join(kinds)} need a second rank, and tp=1 has none")
    relays = (EngineOptions().relay,) if relay is None else (relay,) if isinstance(relay, str) else tuple(relay)
    topology = Topology(start="spawn" if start == "spawn" else "fork")
    return _plans(low, high, kinds, relays, max_faults, target, topology, passages)


@st.composite
def _plans(
    draw: DrawFn,
    low: int,
    high: int,
    kinds: tuple[str, ...],
    relays: tuple[str, ...],
    max_faults: int,
    target: str,
    topology: Topology,
    passages: Passages,
) -> Plan:
    chooser = Chooser(draw)
    ranks = chooser.of([ranks for ranks in range(low, high + 1) for _ in range(_WEIGHTS.get(ranks, 1))])
    requests = tuple(_request(chooser) for _ in range(chooser.number(1, 3)))
    count = chooser.number(1, max_faults) if kinds and max_faults > 0 else 0
    options = EngineOptions(relay=chooser.of(relays) if len(relays) > 1 else relays[0])
    passage = passages(ranks, options.relay, requests[0].max_tokens)
    situation = Situation(chooser, passage, requests, max(1, _TICKS // max(1, count)))
    usable = tuple(kind for kind in kinds if situation.has(kind))
    chosen: tuple[Fault, ...] = ()
    if usable and count:
        swarm = [kind for kind in usable if chooser.whether()] or [chooser.of(usable)]
        chosen = tuple(DRAWERS[chooser.of(swarm)](situation) for _ in range(count))
    return Plan(
        topology=Topology(tp=ranks, start=topology.start),
        engine=options,
        workload=Workload(requests=requests),
        faults=chosen,
        observe=("relay",) if ranks > 1 else (),
        budget=BUDGET,
        target=target,
    )


_AMONG_RANKS = (*ON_FRAMES, *ON_COLLECTIVES)
"""What needs a second rank, as far as the table of passages knows."""


def _request(choose: Chooser) -> Request:
    return Request(
        prompt=choose.of(_PROMPTS),
        max_tokens=choose.number(1, 6),
        at="previous" if choose.whether() else "ready",
    )
