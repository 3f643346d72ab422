"""Histories written by hand, for tests of pure functions: short marks and frames in, one history out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from harness.faults import Fault, Kill, kind_of
from harness.history import DoubleLook, Event, FaultCount, Frame, History, Process
from harness.instant import Instant
from harness.oracles import ORACLES
from harness.plan import EngineOptions, Plan, Topology
from harness.targets import get
from harness.verdict import Finding

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


STARTED = [mark(1, "startup", "begin"), mark(5, "startup", "ready", value=1040)]
"""The marks of a start-up that ended with an engine that is ready, and may hold so many requests."""

KILL_RANK_0 = Kill(Instant.parse("dp0.rank0:relay.send[done]#1:before"))
DEAD = "EngineDeadError|dp0.rank0|killed by SIGKILL"
"""What a user is told after that, as marks tell it."""


def failed(text: str = DEAD, kind: str = "EngineDeadError", t: int = 90) -> list[Event]:
    """A start-up, and a request that ended with that error."""
    return [*STARTED, mark(10, "request.sent", number=0), mark(t, "request.failed", kind, 0, ok=False, text=text)]


def relay(*frames: tuple[str, int]) -> list[Event]:
    """What rank 0 sent and rank 1 received on the relay, a frame each 10 ms: kinds and numbers."""
    sent = [call(10 * i + 9, "dp0.rank0", "relay.send", "before", kind, 1, n) for i, (kind, n) in enumerate(frames)]
    sent += [call(10 * i + 9, "dp0.rank0", "relay.send", "after", kind, 1, n) for i, (kind, n) in enumerate(frames)]
    got = [call(10 * i + 10, "dp0.rank1", "relay.recv", "after", kind, 1, n) for i, (kind, n) in enumerate(frames)]
    return [*sent, *got]


def findings(code: str, events: Sequence[Event] = (), **kwargs: Any) -> list[Finding]:
    """What the oracle of that code finds in the history of these events."""
    found = ORACLES[code](history(events, **kwargs), get("engine"))
    assert all(finding.oracle == code for finding in found)
    return found


def sentences(code: str, events: Sequence[Event] = (), **kwargs: Any) -> list[str]:
    """The same, only what it says."""
    return [finding.sentence for finding in findings(code, events, **kwargs)]


def before_demand(history: History) -> History:
    """The same without what came when the client program had begun its demand."""
    begun = next((event.t for event in history.of("client", "demand") if event.kind == "begin"), history.cleanup)
    return msgspec.structs.replace(history, events=tuple(event for event in history.events if event.t < begun))


def process(
    role: str,
    status: int | None = 0,
    ended_by: Literal["itself", "cleanup"] = "itself",
    log: str = "",
    ended: int = 900,
) -> Process:
    """A process that started at 0 and ended at ``ended`` (milliseconds)."""
    return Process(role, 100, 0, ended * MS if status is not None else None, status, ended_by, log)


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
    cleanup: int = 1000,
    relay: str = "pushpull",
    stalled: float = 0.0,
) -> History:
    """A history that ends at ``cleanup`` (milliseconds); without ``processes``, client and ranks ended in order."""
    plan = Plan(topology=Topology(tp=tp), engine=EngineOptions(relay=relay), faults=tuple(faults))
    counts = [
        FaultCount(kind_of(fault), str(fault), fault.victim, fault.optional, 1, count, count)
        for fault, count in zip(faults, fired, strict=True)
    ]
    return History(
        plan=plan,
        began=0,
        cleanup=cleanup * MS,
        ended=ended,
        events=tuple(sorted(events, key=lambda event: event.t)),
        processes=tuple(processes if processes is not None else map(process, plan.topology.roles)),
        frames=tuple(frames),
        faults=tuple(counts),
        golden={f"r{i}": tuple(golden) for i in range(3)},
        residue=tuple(residue),
        look=look,
        stalled=stalled,
    )
