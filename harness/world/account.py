"""What became of a run's faults and frames: the seam's and the proxy's records in the words of a history."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.faults import OnFrames, kind_of
from harness.history import Event, FaultCount, Frame
from harness.plan import Plan
from harness.proxy import RunEnd, Seen
from harness.proxy.records import Record

_LOG_TAIL = 4000


def fault_counts(plan: Plan, events: Sequence[Event], ended: RunEnd | None) -> tuple[FaultCount, ...]:
    """For each fault of the plan, how often it was armed, reached and fired; ``ended`` is the proxy's last word."""
    rules = {count.index: count for count in ended.rules} if ended is not None else {}
    counts = []
    for index, fault in enumerate(plan.faults):
        if not isinstance(fault, OnFrames):
            armed, reached, fired = (
                sum(event.site == f"fault.{word}" and event.number == index for event in events)
                for word in ("armed", "reached", "fired")
            )
        elif index in rules:
            armed, reached, fired = rules[index].armed, rules[index].reached, rules[index].fired
        else:
            armed = reached = fired = 0
        counts.append(FaultCount(kind_of(fault), str(fault), fault.victim, fault.optional, armed, reached, fired))
    return tuple(counts)


def frames_of(records: Sequence[Record]) -> tuple[Frame, ...]:
    """The frames of a proxy's ledger."""
    return tuple(_frame(record) for record in records if isinstance(record, Seen))


def _frame(seen: Seen) -> Frame:
    return Frame(
        t=seen.t_ns,
        link=seen.link,
        connector=seen.connector,
        direction=seen.direction,
        connection=seen.connection,
        kind=seen.kind,
        number=-1 if seen.number is None else seen.number,
        nth=seen.nth,
        size=seen.size,
        fate=seen.fate,
        rule=-1 if seen.rule is None else seen.rule,
    )


def tail(path: Path) -> str:
    """The end of what a process printed."""
    try:
        return path.read_bytes()[-_LOG_TAIL:].decode("utf-8", "replace")
    except OSError:
        return ""
