"""Histories written by hand, for tests of pure functions: short marks and frames in, one history out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from harness.faults import Fault, kind_of
from harness.history import DoubleLook, Event, FaultCount, Frame, History, Process
from harness.plan import Plan, Topology

MS = 1_000_000


def mark(t: int, site: str, kind: str = "", number: int = -1, value: int = 0, ok: bool = True, text: str = "") -> Event:
    """A mark of the client program, ``t`` in milliseconds."""
    return Event(t * MS, "client", 1, site, "mark", kind, 1, number, value, 0, ok, text)


def call(
    t: int,
    role: str,
    site: str,
    side: Literal["before", "after"] = "after",
    kind: str = "",
    n: int = 1,
    number: int = -1,
) -> Event:
    """One end of a wrapped call, ``t`` in milliseconds."""
    return Event(t * MS, role, 1, site, side, kind, n, number)


def request(start: int, tokens: Sequence[int], number: int = 0, end: str = "length") -> list[Event]:
    """A whole served request, a token each millisecond."""
    sent = mark(start, "request.sent", number=number)
    got = [mark(start + 1 + i, "request.token", number=number, value=token) for i, token in enumerate(tokens)]
    return [sent, *got, mark(start + 1 + len(tokens), "request.finished", end, number)]


def process(
    role: str, status: int | None = 0, ended_by: Literal["itself", "cleanup"] = "itself", log: str = ""
) -> Process:
    """A process that started at 0 and ended at 900 ms."""
    return Process(role, 100, 0, 900 * MS if status is not None else None, status, ended_by, log)


def history(
    events: Sequence[Event] = (),
    *,
    faults: Sequence[Fault] = (),
    fired: Sequence[int] = (),
    processes: Sequence[Process] | None = None,
    golden: Sequence[int] = (7, 8),
    ended: Literal["done", "wedge", "budget"] = "done",
    frames: Sequence[Frame] = (),
    residue: Sequence[str] = (),
    look: DoubleLook | None = None,
    tp: int = 2,
) -> History:
    """A history of 1 s; without ``processes``, the client and all ranks ended in order."""
    plan = Plan(topology=Topology(tp=tp), faults=tuple(faults))
    counts = [
        FaultCount(kind_of(fault), str(fault), fault.victim, fault.optional, 1, count, count)
        for fault, count in zip(faults, fired, strict=True)
    ]
    return History(
        plan=plan,
        began=0,
        cleanup=1000 * MS,
        ended=ended,
        events=tuple(sorted(events, key=lambda event: event.t)),
        processes=tuple(processes if processes is not None else map(process, plan.topology.roles)),
        frames=tuple(frames),
        faults=tuple(counts),
        golden={f"r{i}": tuple(golden) for i in range(3)},
        residue=tuple(residue),
        look=look,
    )
