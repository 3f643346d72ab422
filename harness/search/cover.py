"""The first plans of every hunt: a few fixed ones that fire each kind of fault, so that no short hunt misses a kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.faults import AbortRace, Cancel, Close, Delay, Drop, DropClient, Fault, Hold, Kill, SlowReader, Stop
from harness.instant import Instant
from harness.plan import EngineOptions, Plan, Request, Topology, Workload
from harness.search import sites
from harness.search.phases import BUDGET


def cover(tp: tuple[int, int], relay: str, start: str = "fork", target: str = "engine") -> Iterator[Plan]:
    """A clean plan for each number of ranks, then one plan for each kind of fault at the most ranks, two at the end."""
    for ranks in range(tp[0], tp[1] + 1):
        yield _plan(ranks, relay, start, target, ())
    last = f"dp0.rank{tp[1] - 1}"
    yield _plan(tp[1], relay, start, target, [Delay(at=Instant(last, "start"), seconds=0.2)])
    yield _plan(tp[1], relay, start, target, [Stop(at=Instant(last, "tp.all_reduce", n=2), seconds=0.2)])
    yield _plan(tp[1], relay, start, target, [Kill(at=Instant("dp0.rank0", "output.send"))])
    yield _plan(tp[1], relay, start, target, [Kill(at=Instant("client", "output.recv", "outputs"))])
    for fault in (Cancel(during="add"), Close(), AbortRace(when="stranger"), SlowReader(), DropClient()):
        yield _plan(tp[1], relay, start, target, [fault])
    late = sites.late_instants()[0]
    yield _plan(tp[1], relay, start, target, [Delay(at=late, seconds=0.3)])
    yield _plan(tp[1], relay, start, target, [Kill(at=late)])
    if tp[1] > 1:
        for link, frame in sites.frames(relay):
            yield _plan(tp[1], relay, start, target, [Hold(link=link, frame=frame, victim=last, or_after=0.1)])
        yield _plan(tp[1], relay, start, target, [Drop(link="relay", frame="step", victim=last)])


def _plan(ranks: int, relay: str, start: str, target: str, faults: Sequence[Fault]) -> Plan:
    return Plan(
        topology=Topology(tp=ranks, start="spawn" if start == "spawn" else "fork"),
        engine=EngineOptions(relay=relay),
        workload=Workload(requests=(Request(prompt=(1, 2, 3)), Request(prompt=(7, 8), max_tokens=3))),
        faults=tuple(faults),
        observe=("relay",) if ranks > 1 else (),
        budget=BUDGET,
        target=target,
    )
