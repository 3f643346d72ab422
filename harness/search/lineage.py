"""The lineage of what users were told: until when each role of a run did anything that can have led to it.

What one process did happened before what another one did if word of it can have come there in time. Where a history
does not say whether it did, it counts as having come: the support is rather too large than too small, so that what is
said to touch none of it touches none.

- All that a role does comes before all that it does later, whatever the thread.
- A call on a link, a group or the store comes back with what every other role did on it before. A poll that also
  watches descriptors may come back for anything.
- A frame that a proxy saw reaches its receiver's next event.
- The end of a process is noticed by everybody at once.
- What a rank writes to its launcher leaves no trace. Until the engine is ready, and of a rank that does not leave in
  order, all counts as read at the client's next event; the pulse of every rank counts as read when health is asked.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from harness.history import Event, Frame, History
from harness.oracles import outcome
from harness.targets import Target

TOLD = (
    "startup",
    "request.token",
    "request.finished",
    "request.failed",
    "utility",
    "demand",
    "health",
    "latched",
    "shutdown",
)
"""The marks of the client program that say what a user was told; those of kind ``begin`` say what was asked."""

_ANYTHING = "fd"
_NEVER = -1


class _Edge(NamedTuple):
    """What ``source`` did until ``sent`` may have led to what ``reader`` did at ``read`` (nanoseconds)."""

    read: int
    reader: str
    source: str
    sent: int


class Lineage(Struct, frozen=True):
    """The support of what users were told in one run: for each role in it, its last moment there (nanoseconds)."""

    history: History
    target: Target
    until: dict[str, int]

    @classmethod
    def of(cls, history: History, target: Target) -> Lineage:
        """Walks back from what users were told. Every edge leads forward in time, so that one walk finds all."""
        until = {}
        told = [event.t for event in history.of("client", side="mark") if event.site in TOLD and event.kind != "begin"]
        if told:
            until["client"] = max(told)
        for edge in sorted(_edges(history, target), reverse=True):
            if edge.read <= until.get(edge.reader, _NEVER):
                until[edge.source] = max(edge.sent, until.get(edge.source, _NEVER))
        return cls(history, target, until)

    def holds(self, role: str, t: int) -> bool:
        """Whether anything that the role did at that time (nanoseconds) or later is in the support."""
        return t <= self.until.get(role, _NEVER)

    def receives(self, frame: Frame) -> bool:
        """Whether the frame's receive is in the support. A command of the connection is received without a trace."""
        receiver = _ends(frame, self.target)[1]
        if not self.holds(receiver, frame.t):
            return False
        if frame.kind.isupper() or not frame.kind.isalpha():
            return True
        return any(
            event.t >= frame.t
            and self.holds(receiver, event.t)
            and event.kind in (frame.kind, "")
            and (frame.number in (event.number, -1) or event.number == -1)
            for event in self.history.of(receiver, f"{frame.link}.recv", "after")
        )

    def carries(self, frame: Frame) -> bool:
        """Whether either end of the frame's connection is in the support when it is seen, or later."""
        return any(self.holds(role, frame.t) for role in _ends(frame, self.target))


def _ends(frame: Frame, target: Target) -> tuple[str, str]:
    """Sender and receiver."""
    ends = frame.connector, target.binder(frame.link)
    return ends if frame.direction == "to_binder" else ends[::-1]


class _Times:
    """When each role did something, at all and on each channel, in order."""

    def __init__(self, events: list[Event]) -> None:
        self.of: dict[tuple[str, str], list[int]] = {}
        for event in events:
            self.of.setdefault((event.role, _ANYTHING), []).append(event.t)
            self.of.setdefault((event.role, _channel(event.site)), []).append(event.t)
        self.roles = tuple(role for role, channel in self.of if channel == _ANYTHING)

    def before(self, role: str, channel: str, t: int) -> int | None:
        """The last time before ``t``."""
        times = self.of.get((role, channel), [])
        place = bisect_left(times, t)
        return times[place - 1] if place else None

    def after(self, role: str, t: int) -> int | None:
        """The first time after ``t``."""
        times = self.of.get((role, _ANYTHING), [])
        place = bisect_right(times, t)
        return times[place] if place < len(times) else None

    def last(self, role: str) -> int | None:
        times = self.of.get((role, _ANYTHING))
        return times[-1] if times else None


def _channel(site: str) -> str:
    return site.partition(".")[0]


def _edges(history: History, target: Target) -> Iterator[_Edge]:
    events = [event for event in history.events if event.t <= history.cleanup]
    times = _Times(events)
    yield from _calls(events, times)
    for frame in history.frames:
        sender, receiver = _ends(frame, target)
        read = times.after(receiver, frame.t)
        if read is not None:
            yield _Edge(read, receiver, sender, frame.t)
    for process in history.processes:
        last = times.last(process.role)
        if process.ended is None or last is None:
            continue
        for role in times.roles:
            read = times.after(role, last)
            if role != process.role and read is not None:
                yield _Edge(read, role, process.role, last)
    yield from _reports(history, target, events, times)


def _calls(events: list[Event], times: _Times) -> Iterator[_Edge]:
    """What calls that came back, and failed ones, have heard of other roles."""
    for event in events:
        if event.side != "after":
            continue
        channels = {_channel(event.site): None}
        if event.site.endswith(".poll"):
            channels |= dict.fromkeys(_channel(source) for source in event.text.split("|"))
        for role in times.roles:
            for channel in channels:
                sent = times.before(role, channel, event.t)
                if role != event.role and sent is not None:
                    yield _Edge(event.t, event.role, role, sent)


def _reports(history: History, target: Target, events: list[Event], times: _Times) -> Iterator[_Edge]:
    """What the client may have read of ranks without a trace."""
    ready = outcome.ready_at(history)
    orderly = {
        process.role
        for process in history.processes
        if process.status is None or (process.ended_by == "itself" and target.left_in_order(process.status))
    }
    for event in events:
        if event.role != "client":
            continue
        for role in times.roles:
            sent = times.before(role, _ANYTHING, event.t)
            open_ = ready is None or event.t <= ready or role not in orderly or event.site == "health"
            if role != "client" and sent is not None and open_:
                yield _Edge(event.t, "client", role, sent)
