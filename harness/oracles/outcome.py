"""What became of each request and of the start-up, as the client program noted it; what several oracles ask first."""

from __future__ import annotations

import math

from msgspec import Struct

from harness.faults import (
    Exit,
    Fault,
    FullDisk,
    Kill,
    LongPath,
    OnClient,
    OnCollectives,
    OnFiles,
    OnFrames,
    Raise,
    Restart,
    Stale,
    Stop,
    Terminate,
)
from harness.history import Event, History
from harness.targets import Patience, get

DEATHS = ("EngineDeadError", "StartupError")
"""The errors that say that the engine is dead."""

ENDS = ("request.finished", "request.failed", "request.given_up")
"""The marks that end a request: the engine's two ways, and the client's own."""


class Ending(Struct, frozen=True):
    """An error as the client saw it: its type, the role that it names (empty for none), its cause, and when."""

    kind: str
    culprit: str
    cause: str
    t: int

    @classmethod
    def of(cls, event: Event) -> Ending:
        kind, culprit, cause = [*event.text.split("|", 2), "", ""][:3]
        return cls(kind, culprit, cause, event.t)


class Outcome(Struct, frozen=True):
    """One request: its tokens, the reasons of every end that was reported, and the errors.

    ``kind`` is ``rk`` for a further request that asks what request k asks, ``poison`` for one that nobody can serve.
    ``given_up``: when the client itself left it, so that nothing is owed any more; ``aborted``: when it first asked for
    the abort of what it had sent (nanoseconds, None for never).
    """

    number: int
    sent: int
    tokens: tuple[int, ...]
    finished: tuple[Event, ...]
    failed: tuple[Ending, ...]
    tokens_after_end: int
    kind: str = ""
    given_up: int | None = None
    aborted: int | None = None

    @property
    def name(self) -> str:
        return f"r{self.number}"

    @property
    def like(self) -> str:
        """The request of the workload whose reference tokens it has."""
        return self.kind or self.name

    @property
    def poison(self) -> bool:
        return self.kind == "poison"

    @property
    def refused(self) -> bool:
        """Whether it ended with an error, its own or the engine's."""
        return bool(self.failed) or any(end.kind == "error" for end in self.finished)

    @property
    def busy(self) -> bool:
        """Whether it was refused as one too many."""
        return any(end.kind == "error" and end.text.startswith("busy|") for end in self.finished)

    @property
    def served(self) -> bool:
        return len(self.finished) == 1 and not self.failed and self.finished[0].kind in ("length", "stop")


def requests(history: History) -> list[Outcome]:
    """Every request that was sent, in the order of sending."""
    found = []
    marks: dict[int, list[Event]] = {}
    for event in history.of("client", side="mark"):
        marks.setdefault(event.number, []).append(event)
    for sent in history.of("client", "request.sent"):
        mine = marks[sent.number]
        finished = tuple(event for event in mine if event.site == "request.finished")
        ends = [event.t for event in mine if event.site in ENDS]
        left = [event.t for event in mine if event.site == "request.given_up"]
        aborts = [event.t for event in mine if event.site == "request.abort" and event.t >= sent.t]
        tokens = [event for event in mine if event.site == "request.token"]
        late = sum(event.t > min(ends) for event in tokens) if ends else 0
        found.append(
            Outcome(
                sent.number,
                sent.t,
                tuple(event.value for event in tokens),
                finished,
                tuple(Ending.of(event) for event in mine if event.site == "request.failed"),
                late,
                sent.kind,
                min(left, default=None),
                min(aborts, default=None),
            )
        )
    return found


def startup_error(history: History) -> Ending | None:
    """The error with which the start-up ended, or None."""
    return next((Ending.of(event) for event in history.of("client", "startup") if event.kind == "failed"), None)


def config_error(history: History) -> Ending | None:
    """The complaint about its configuration with which the engine has refused to begin at all, or None."""
    found = startup_error(history)
    return found if found is not None and found.kind == "ConfigError" else None


def may_refuse_config(history: History) -> bool:
    """Whether a fault has made the folder that the engine is given one that it cannot use."""
    return any(isinstance(fault, Stale | LongPath | FullDisk) for fault in fired(history))


def demand_error(history: History) -> Ending | None:
    """The error with which the demand at the end of the client program ended, or None."""
    return next((Ending.of(event) for event in history.of("client", "demand") if event.kind == "failed"), None)


def is_ready(history: History) -> bool:
    """Whether the engine said that it was ready."""
    return any(event.kind == "ready" for event in history.of("client", "startup"))


def client_was_killed(history: History) -> bool:
    """Whether the client program itself was killed, so that nobody is left to be owed anything."""
    client = history.process("client")
    return client is not None and client.ended_by == "itself" and (client.status or 0) < 0


def fired(history: History) -> list[Fault]:
    """The faults of the plan that did what they are for."""
    return [fault for fault, count in zip(history.plan.faults, history.faults, strict=False) if count.fired]


def killed(history: History) -> tuple[str, ...]:
    """The roles that a fault of the plan ended: killed, or left with a failure after an exception or a signal."""
    return tuple(fault.victim for fault in fired(history) if _is_fatal(fault, history))


def _is_fatal(fault: Fault, history: History) -> bool:
    if not isinstance(fault, Raise | Terminate):
        return isinstance(fault, Kill | Exit | Restart)
    process = history.process(fault.victim)
    return process is not None and process.ended_by == "itself" and process.status not in (None, 0)


def blamable(history: History) -> tuple[str, ...]:
    """The roles that an error may name: what was killed, or else whoever is on the path of a lossy or long fault.

    A stopped role is the one that keeps the others waiting, so it alone. Who finds a squatter, or that a file is
    missing, may be anybody. Whose part of a collective was wrong gloo tells nobody: of two ranks each takes the other
    for it, of several the error need name none. A client that breaks its own engine is the culprit itself.
    """
    dead, did = killed(history), fired(history)
    if any(isinstance(fault, OnClient) and math.isinf(fault.cost) for fault in did):
        return ("client", *dead)
    did = [fault for fault in did if not isinstance(fault, OnClient)]
    if dead or not did:
        return dead
    ranks = history.plan.topology.ranks
    if any(isinstance(fault, OnCollectives) for fault in did):
        return ranks if len(ranks) == 2 else (*ranks, "")
    if any(isinstance(fault, OnFiles) for fault in did):
        return history.plan.topology.roles
    hit = {role for fault in did for role in (fault.roles if isinstance(fault, Stop) else (fault.victim,))}
    if not all(isinstance(fault, Stop) for fault in did):
        hit.add(ranks[0])
    binders = {get(history.plan.target).binder(fault.link) for fault in did if isinstance(fault, OnFrames)}
    return tuple(role for role in history.plan.topology.roles if role in (hit & set(ranks)) | binders)


def patience_spent(history: History) -> Patience:
    """What the plan's faults cost at most, apart for those that fired before the engine was ready and after.

    A stall of the whole machine is like a delay of everybody, whenever it was.
    """
    ready = next((event.t for event in history.of("client", "startup") if event.kind == "ready"), history.cleanup)
    starting = serving = history.stalled
    for index, (fault, count) in enumerate(zip(history.plan.faults, history.faults, strict=False)):
        if not count.fired:
            continue
        if _fired_at(history, index) < ready:
            starting += fault.cost
        else:
            serving += fault.cost
    return Patience(starting, serving)


def killed_at(history: History) -> int:
    """When the first of the faults fired that ended a role (nanoseconds)."""
    faults = enumerate(zip(history.plan.faults, history.faults, strict=False))
    times = [_fired_at(history, index) for index, (fault, count) in faults if count.fired and _is_fatal(fault, history)]
    return min(times, default=history.began)


def _fired_at(history: History, index: int) -> int:
    marks = [event.t for event in history.of(site="fault.fired") if event.number == index]
    frames = [frame.t for frame in history.frames if frame.rule == index]
    return min([*marks, *frames], default=history.began)
