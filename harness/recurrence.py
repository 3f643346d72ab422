"""Livelock: processes that are never quiet, do the same again and again, and get nowhere with what is owed.

No proof stands on that: the next round may be the last. So a run whose budget is spent in this way is a suspected
wedge. A pure function of a history.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from harness.history import Event, History
from harness.oracles.outcome import ENDS

ROUNDS = 20
"""How often the same has to be done again, without a pause, up to the end."""

LONGEST = 64
"""Events of the longest round that is looked for."""

_MOVES = ("startup", "utility", "demand", "shutdown", "request.sent", "request.token", *ENDS)
"""The client program's marks that something which is owed has got on."""


class Round(Struct, frozen=True):
    """What one role does again and again: its calls in order, how often it has, and since when (nanoseconds)."""

    role: str
    calls: tuple[str, ...]
    times: int
    since: int


def rounds(history: History) -> tuple[Round, ...]:
    """The rounds in which the run was caught when its budget was spent; none if any process did anything else."""
    moved = max((event.t for event in history.of("client", side="mark") if event.site in _MOVES), default=history.began)
    busy: dict[str, list[Event]] = {}
    for event in history.events:
        if moved < event.t <= history.cleanup and event.side != "mark":
            busy.setdefault(event.role, []).append(event)
    found = [_round(role, events) for role, events in busy.items()]
    return tuple(one for one in found if one is not None) if found and None not in found else ()


def _round(role: str, events: Sequence[Event]) -> Round | None:
    words = [f"{event.site}[{event.kind}]" if event.kind else event.site for event in events]
    sides = [event.side for event in events]
    for size in range(1, min(LONGEST, len(words) // ROUNDS) + 1):
        same = 0
        while same < len(words) - size and words[-1 - same] == words[-1 - same - size]:
            if sides[-1 - same] != sides[-1 - same - size]:
                break
            same += 1
        times = same // size + 1
        if times >= ROUNDS:
            begin = len(words) - times * size
            calls = [word for word, side in zip(words[-size:], sides[-size:], strict=True) if side == "after"]
            return Round(role, tuple(calls or words[-size:]), times, events[begin].t)
    return None
