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
    """A clean plan for each number of ranks, and a plan for each kind of fault; what wedges most engines comes first.

    Two ranks show most bugs at the least cost, so the faults come there; at the most ranks come only those between
    ranks that have no counterpart with two: one rank alone is late, or dies, or does not hear.
    """
    low, high = tp
    few = max(low, min(2, high))
    last = f"dp0.rank{few - 1}"
    yield _plan(few, relay, start, target, ())
    deaths, rest = _on_roles(last)
    frames, collectives = (_on_frames(relay, last), _on_collectives(last)) if few > 1 else ((), ())
    for faults in (deaths, frames):
        for fault in faults:
            yield _plan(few, relay, start, target, [fault])
    for ranks in range(low, high + 1):
        if ranks != few:
            yield _plan(ranks, relay, start, target, ())
    if high > few:
        for fault in _of_one_among_many(relay, f"dp0.rank{high - 1}"):
            yield _plan(high, relay, start, target, [fault])
    for faults in (rest, collectives):
        for fault in faults:
            yield _plan(few, relay, start, target, [fault])


_FIRST = "dp0.rank0"
_LATE = sites.late_instants()[0]
_SENDING, _TELLING = Instant(_FIRST, "output.send", side="before"), Instant(_FIRST, "output.send")


def _on_roles(last: str) -> tuple[Sequence[Fault], Sequence[Fault]]:
    """What is done to processes, calls and users: deaths and late starts, then the rest."""
    return (
        Kill(at=_TELLING),
        Delay(at=Instant(last, "start"), seconds=0.2),
        Kill(at=Instant("client", "output.recv", "outputs")),
        Kill(at=_LATE),
        Kill(at=Instant(last, "start")),
        Exit(at=_TELLING, code=0),
        Raise(at=_SENDING),
        AbortRace(when="stranger"),
        Close(),
    ), (
        Stop(at=Instant(last, "output.send" if last == _FIRST else "tp.all_reduce", n=1), seconds=0.2),
        Cancel(during="add"),
        SlowReader(),
        DropClient(),
        Delay(at=_LATE, seconds=0.3),
        Terminate(at=_TELLING),
        Restart(at=_TELLING),
        Block(at=_SENDING, or_after=0.2),
        Flood(count=4),
        Poison(),
        BlockLoop(seconds=0.05),
    )


def _on_frames(relay: str, victim: str) -> Sequence[Fault]:
    step: dict[str, Any] = {"link": "relay", "frame": "step", "victim": victim}
    holds = [Hold(link=link, frame=frame, victim=victim, or_after=0.1) for link, frame in sites.frames(relay)]
    return (
        Drop(**step),
        *holds,
        Duplicate(**step),
        Reset(**step),
        Reorder(**step),
        Corrupt(**step),
        Truncate(**step),
        Foreign(**step),
        Lag(**step, seconds=0.1),
        Stall(**step, or_after=0.1),
    )


def _on_collectives(role: str) -> Sequence[Fault]:
    summing = Instant(role, "tp.all_reduce", n=3, side="before")
    return (Skip(at=summing), Extra(at=summing), Swap(at=summing), WrongShape(at=summing))


def _of_one_among_many(relay: str, role: str) -> Sequence[Fault]:
    return (
        *(Hold(link=link, frame=frame, victim=role, or_after=0.3) for link, frame in sites.frames(relay)[:1]),
        Delay(at=Instant(role, "start"), seconds=0.2),
        Kill(at=Instant(role, "tp.all_reduce", n=2)),
    )


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
