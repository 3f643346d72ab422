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

    Two ranks show most bugs at the least cost, so the faults come there; at the most ranks comes only what has no
    counterpart with two: one rank alone is late, or dies, or does not hear.
    """
    low, high = tp
    few = max(low, min(2, high))
    last, last_of_many = f"dp0.rank{few - 1}", f"dp0.rank{high - 1}"

    def at_few(faults: Sequence[Fault]) -> Iterator[Plan]:
        return (_plan(few, relay, start, target, [fault]) for fault in faults)

    def at_most(faults: Sequence[Fault]) -> Iterator[Plan]:
        return (_plan(high, relay, start, target, [fault]) for fault in (faults if high > few else ()))

    yield _plan(few, relay, start, target, ())
    yield from at_few(_first(relay, last, alone=few == 1))
    yield from at_most(_joining(relay, last_of_many)[:1])
    yield from at_few(_on_roles(last))
    if few > 1:
        yield from at_few(_on_frames(relay, last))
    yield from (_plan(ranks, relay, start, target, ()) for ranks in range(low, high + 1) if ranks != few)
    yield from at_most(_of_one_among_many(last_of_many))
    yield from at_few(_on_clients())
    if few > 1:
        yield from at_few(_on_collectives(last))


_FIRST = "dp0.rank0"
_LATE = sites.late_instants()[0]
_SENDING, _TELLING = Instant(_FIRST, "output.send", side="before"), Instant(_FIRST, "output.send")


def _step(victim: str) -> dict[str, Any]:
    return {"link": "relay", "frame": "step", "victim": victim}


def _joining(relay: str, victim: str) -> Sequence[Fault]:
    """What a rank says when it joins, held back on each link."""
    links = [(link, frame) for link, frame in sites.frames(relay) if frame == "join"]
    return [Hold(link=link, frame=frame, victim=victim, or_after=0.3) for link, frame in links]


def _first(relay: str, last: str, *, alone: bool) -> Sequence[Fault]:
    """The mission: a death while tokens flow, a late rank, a lost frame, a late join, a death while nothing happens."""
    late = Delay(at=Instant(last, "start"), seconds=0.2)
    among = () if alone else (Drop(**_step(last)), *_joining(relay, last))
    return (Kill(at=_TELLING), late, *among, Kill(at=_LATE), Kill(at=Instant("client", "output.recv", "outputs")))


def _on_roles(last: str) -> Sequence[Fault]:
    return (
        Kill(at=Instant(last, "start")),
        Exit(at=_TELLING, code=0),
        Raise(at=_SENDING),
        Stop(at=Instant(last, "output.send" if last == _FIRST else "tp.all_reduce", n=1), seconds=0.2),
        Delay(at=_LATE, seconds=0.3),
        Terminate(at=_TELLING),
        Restart(at=_TELLING),
        Block(at=_SENDING, or_after=0.2),
    )


def _on_clients() -> Sequence[Fault]:
    return (
        AbortRace(when="stranger"),
        Close(),
        Cancel(during="add"),
        SlowReader(),
        DropClient(),
        Flood(count=4),
        Poison(),
        BlockLoop(seconds=0.05),
    )


def _on_frames(relay: str, victim: str) -> Sequence[Fault]:
    others = [(link, frame) for link, frame in sites.frames(relay) if frame != "join"]
    step = _step(victim)
    return (
        *(Hold(link=link, frame=frame, victim=victim, or_after=0.1) for link, frame in others),
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


def _of_one_among_many(role: str) -> Sequence[Fault]:
    return (Delay(at=Instant(role, "start"), seconds=0.2), Kill(at=Instant(role, "tp.all_reduce", n=2)))


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
