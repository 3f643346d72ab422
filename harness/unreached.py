"""Why a fault was never reached: what the run passed instead, and what stands nearest to what the plan names."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence

from msgspec import structs

from harness.faults import Fault, OnClient, OnFrames
from harness.history import FaultCount, History
from harness.instant import Instant
from harness.oracles import outcome

_NEAR = 3


def explained(history: History) -> tuple[FaultCount, ...]:
    """The counts of a history's faults, with a reason for each that was not reached."""
    return tuple(
        structs.replace(count, why=_why(history, fault)) if not count.reached else count
        for fault, count in zip(history.plan.faults, history.faults, strict=False)
    )


def _why(history: History, fault: Fault) -> str:
    if isinstance(fault, OnFrames):
        return _frame(history, fault)
    if isinstance(fault, OnClient):
        return _request(history, fault)
    at = getattr(fault, "at", None)
    return _instant(history, at) if isinstance(at, Instant) else ""


def _instant(history: History, at: Instant) -> str:
    if at.role not in {process.role for process in history.processes}:
        return f"{at.role} never started"
    passed: Counter[str] = Counter()
    for event in history.of(at.role):
        if event.side == at.side and event.ok:
            passed[_named(event.site, event.kind)] += 1
            if event.kind:
                passed[event.site] += 1
    wanted = _named(at.site, at.kind or "")
    if times := passed[wanted]:
        return f"{at.role} passed {wanted} {_times(times)}, never the {_nth(at.n)} time"
    return f"{at.role} never passed {wanted}{_hint(wanted, list(passed))}"


def _frame(history: History, fault: OnFrames) -> str:
    where = f"between {fault.victim} and the binder of {fault.link}"
    passed = Counter(
        frame.kind for frame in history.frames if (frame.link, frame.connector) == (fault.link, fault.victim)
    )
    if times := passed[fault.frame]:
        return f"{fault.frame} came {_times(times)} {where}, never a {_nth(fault.nth)}"
    return f"no {fault.frame} came {where}{_hint(fault.frame, list(passed))}"


def _request(history: History, fault: OnClient) -> str:
    asked = next((request for request in outcome.requests(history) if request.number == fault.request), None)
    if asked is None:
        return f"r{fault.request} was never sent"
    tokens = len(asked.tokens)
    how = "was left" if asked.given_up is not None else "failed" if asked.failed else "ended"
    return f"r{fault.request} {how} with {tokens} token{'s' * (tokens != 1)}"


def _named(site: str, kind: str) -> str:
    return f"{site}[{kind}]" if kind else site


def _hint(wanted: str, passed: Sequence[str]) -> str:
    near = difflib.get_close_matches(wanted, passed, n=_NEAR, cutoff=0.5)
    return f"; near it: {', '.join(near)}" if near else ""


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _nth(n: int) -> str:
    if n % 100 in (11, 12, 13):
        return f"{n}th"
    return str(n) + {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
