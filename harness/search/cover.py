"""The first plans of every hunt: a few fixed ones that fire each kind of fault, so that no short hunt misses a kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from harness.faults import (
    AbortRace,
    Block,
    BlockLoop,
    Cancel,
    Close,
    Corrupt,
    Delay,
    Drop,
    DropClient,
    Duplicate,
    Exit,
    Extra,
    Fault,
    Flood,
    Foreign,
    Hold,
    Kill,
    Lag,
    Poison,
    Raise,
    Reorder,
    Reset,
    Restart,
    Skip,
    SlowReader,
    Stall,
    Stop,
    Swap,
    Terminate,
    Truncate,
    WrongShape,
)
from harness.instant import Instant
from harness.plan import EngineOptions, Plan, Request, Topology, Workload
from harness.search import sites
from harness.search.phases import BUDGET


def cover(tp: tuple[int, int], relay: str, start: str = "fork", target: str = "engine") -> Iterator[Plan]:
    """A clean plan for each number of ranks, then one plan for each kind of fault at the most ranks, two at the end."""
    for ranks in range(tp[0], tp[1] + 1):
        yield _plan(ranks, relay, start, target, ())
    last, first = f"dp0.rank{tp[1] - 1}", "dp0.rank0"
    late = sites.late_instants()[0]
    sending, telling = Instant(first, "output.send", side="before"), Instant(first, "output.send")
    for fault in (
        Delay(at=Instant(last, "start"), seconds=0.2),
        Stop(at=Instant(last, "tp.all_reduce", n=2), seconds=0.2),
        Kill(at=telling),
        Kill(at=Instant("client", "output.recv", "outputs")),
        Cancel(during="add"),
        Close(),
        AbortRace(when="stranger"),
        SlowReader(),
        DropClient(),
        Delay(at=late, seconds=0.3),
        Kill(at=late),
        Raise(at=sending),
        Exit(at=telling, code=0),
        Terminate(at=telling),
        Restart(at=telling),
        Block(at=sending, or_after=0.2),
        Flood(count=4),
        Poison(),
        BlockLoop(seconds=0.05),
    ):
        yield _plan(tp[1], relay, start, target, [fault])
    if tp[1] > 1:
        summing = Instant(last, "tp.all_reduce", n=3, side="before")
        for collective in (Skip(at=summing), Extra(at=summing), Swap(at=summing), WrongShape(at=summing)):
            yield _plan(tp[1], relay, start, target, [collective])
        for link, frame in sites.frames(relay):
            yield _plan(tp[1], relay, start, target, [Hold(link=link, frame=frame, victim=last, or_after=0.1)])
        step: dict[str, Any] = {"link": "relay", "frame": "step", "victim": last}
        for of_frame in (
            Drop(**step),
            Lag(**step, seconds=0.1),
            Reorder(**step),
            Reset(**step),
            Stall(**step, or_after=0.1),
            Duplicate(**step),
            Corrupt(**step),
            Truncate(**step),
            Foreign(**step),
        ):
            yield _plan(tp[1], relay, start, target, [of_frame])


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
