"""What became of each request and of the start-up, as the client program noted it; what several oracles ask first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from harness.faults import (
    BlockLoop,
    Clock,
    Descriptors,
    Exit,
    Fault,
    FullDisk,
    InjectedError,
    Kill,
    LongPath,
    Memory,
    OnClient,
    OnCollectives,
    OnFiles,
    OnFrames,
    Raise,
    Restart,
    SlowReader,
    Stale,
    Stop,
    Terminate,
)
from harness.history import Event, History
from harness.instant import Instant
from harness.targets import Patience, Target, get

DEATHS = ("EngineDeadError", "StartupError")
"""The errors that say that the engine is dead."""

SLACK = 2.0
"""Seconds that a busy machine may add to whatever an engine promises about time."""

_CLIENT_START = Instant("client", "start")

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
    the abort of what it had sent (nanoseconds, None for never). ``shorter``: how many tokens it asks for, if those are
    fewer than the one has that it is like, else 0. ``canary``: the demand of the end sent it.
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
    shorter: int = 0
    canary: bool = False

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
    def ended(self) -> int | None:
        """When its user was first told that it is over, or left it (nanoseconds)."""
        times = [*(end.t for end in self.finished), *(ending.t for ending in self.failed)]
        return min([*times, *([] if self.given_up is None else [self.given_up])], default=None)

    @property
    def served(self) -> bool:
        return len(self.finished) == 1 and not self.failed and self.finished[0].kind in ("length", "stop")


def requests(history: History) -> list[Outcome]:
    """Every request that was sent, in the order of sending."""
    found = []
    demanded = next((event.t for event in history.of("client", "demand") if event.kind == "begin"), None)
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
                sent.value,
                demanded is not None and sent.t > demanded,
            )
        )
    return found


def startup_error(history: History) -> Ending | None:
    """The error with which the start-up ended, or None."""
    return _error_of(history, "startup")


def utility_error(history: History) -> Ending | None:
    """The error with which the first utility of the workload that failed has ended, or None."""
    return _error_of(history, "utility")


def config_error(history: History) -> Ending | None:
    """The complaint about its configuration with which the engine has refused to begin at all, or None."""
    found = startup_error(history)
    return found if found is not None and found.kind == "ConfigError" else None


def may_refuse_config(history: History) -> bool:
    """Whether a fault has made the folder that the engine is given one that it cannot use."""
    return any(isinstance(fault, Stale | LongPath | FullDisk) for fault in fired(history))


def endings(history: History) -> dict[str, Ending]:
    """The errors that users were told, by what ended with them.

    What a request that nobody can serve ends with is for BLAST to judge, unless it is the engine's death.
    """
    asked = [request for request in requests(history) if request.failed]
    found = {f"request {r.name}": r.failed[0] for r in asked if not r.poison or r.failed[0].kind in DEATHS}
    others = {
        "the start-up": startup_error(history),
        "the utility": utility_error(history),
        "the demand": demand_error(history),
    }
    return found | {what: ending for what, ending in others.items() if ending is not None}


def is_deserved(history: History, target: Target, ending: Ending) -> bool:
    """Whether the error says that the engine is dead, and faults were bad enough for that.

    What merely took time, a stall of the machine included, excuses no error that does not tell of somebody late.
    """
    if ending.kind not in DEATHS:
        return False
    limit, spent = target.patience(history.plan), patience_spent(history)
    if math.isinf(spent.starting + spent.serving):
        return True
    if spent.starting < limit.starting and spent.serving < limit.serving:
        return False
    statuses = [process.status for process in history.processes if process.status is not None]
    return target.tells_of_time(ending.cause) or any(map(target.left_at_a_deadline, statuses))


def demand_error(history: History) -> Ending | None:
    """The error with which the demand at the end of the client program ended, or None."""
    return _error_of(history, "demand")


def _error_of(history: History, site: str) -> Ending | None:
    return next((Ending.of(event) for event in history.of("client", site) if event.kind == "failed"), None)


def is_ready(history: History) -> bool:
    """Whether the engine said that it was ready."""
    return any(event.kind == "ready" for event in history.of("client", "startup"))


def ready_at(history: History) -> int | None:
    """When the engine was ready (nanoseconds)."""
    return next((event.t for event in history.of("client", "startup") if event.kind == "ready"), None)


def leaving_at(history: History) -> int | None:
    """When the client began to stop the engine (nanoseconds)."""
    return next((event.t for event in history.of("client", "shutdown") if event.kind == "begin"), None)


def told_dead(history: History) -> Event | None:
    """The first mark of a request, a utility or the demand that the engine is dead."""
    sites = ("request.failed", "utility", "demand")
    told = (event for event in history.of("client", side="mark") if event.site in sites)
    return next((event for event in told if not event.ok and Ending.of(event).kind in DEATHS), None)


def left_in_order(history: History, target: Target) -> bool:
    """Whether nobody was told of a death, and every process left because it was asked to."""
    if history.ended != "done" or not is_ready(history) or told_dead(history) is not None:
        return False
    return all(
        process.ended_by == "itself" and process.status is not None and target.left_in_order(process.status)
        for process in history.processes
    )


def begun_with(history: History, link: str) -> bool:
    """Whether a fault of the link has done anything."""
    return any(getattr(fault, "link", None) == link for fault in fired(history))


def held_up(history: History) -> float:
    """Seconds that faults can have taken from the client program itself, which no promise of the engine covers.

    Infinite where there is no telling: the client was stopped for ever, or a clock was changed.
    """
    return sum(_taken_from_client(fault) for fault in fired(history))


def _taken_from_client(fault: Fault) -> float:
    if isinstance(fault, Clock | Memory | Descriptors):
        return math.inf
    if isinstance(fault, BlockLoop):
        return fault.seconds
    if isinstance(fault, SlowReader):
        return math.inf
    roles = fault.roles if isinstance(fault, Stop) else (fault.victim,)
    return fault.cost if "client" in roles and not isinstance(fault, OnFrames) else 0.0


def client_was_killed(history: History) -> bool:
    """Whether the client program itself was killed, or never came to its first line: nobody is owed anything."""
    client = history.process("client")
    if client is None or client.ended_by != "itself" or not client.status:
        return False
    return client.status < 0 or any(isinstance(f, Raise) and f.at == _CLIENT_START for f in fired(history))


def is_injected(history: History, ending: Ending) -> bool:
    """Whether the error is the very one that a fault has raised in the client's own process."""
    raised = any(isinstance(fault, Raise) and _breaks_its_own(fault) for fault in fired(history))
    return raised and ending.kind == InjectedError.__name__


def fired(history: History) -> list[Fault]:
    """The faults of the plan that did what they are for."""
    return [fault for fault, count in zip(history.plan.faults, history.faults, strict=False) if count.fired]


def killed(history: History) -> tuple[str, ...]:
    """The roles that a fault of the plan ended: killed, or left with a failure after an exception or a signal."""
    return tuple(fault.victim for fault in fired(history) if is_fatal(fault, history))


def is_fatal(fault: Fault, history: History) -> bool:
    """Whether the fault has ended its victim."""
    if not isinstance(fault, Raise | Terminate):
        return isinstance(fault, Kill | Exit | Restart)
    process = history.process(fault.victim)
    return process is not None and process.ended_by == "itself" and process.status not in (None, 0)


def blamable(history: History) -> tuple[str, ...]:
    """The roles that an error may name: what was killed, and whoever is on the path of a lossy or long fault.

    A stopped role is the one that keeps the others waiting, so it alone. Who finds a squatter, or that a file is
    missing, may be anybody. Whose part of a collective was wrong gloo tells nobody: of two ranks each takes the other
    for it, of several the error need name none. A client that breaks its own engine is the culprit itself. Beside a
    death counts only what can end an engine by itself.
    """
    dead, did = killed(history), fired(history)
    if any(_breaks_its_own(fault) for fault in did):
        return tuple(dict.fromkeys(("client", *dead)))
    did = [fault for fault in did if not isinstance(fault, OnClient)]
    if dead:
        did = [fault for fault in did if math.isinf(fault.cost) and not is_fatal(fault, history)]
    return tuple(dict.fromkeys((*dead, *_on_the_path(history, did))))


def refusing(history: History) -> frozenset[str]:
    """The roles to which something comes that a fault has lost, changed or repeated, in a frame or in a collective.

    It may be such that the role has to leave by itself, whoever else dies or is asked to leave meanwhile.
    """
    roles: set[str] = set()
    for fault in fired(history):
        if isinstance(fault, OnCollectives):
            roles.update(history.plan.topology.ranks)
        elif isinstance(fault, OnFrames) and math.isinf(fault.cost):
            roles.update((fault.victim, get(history.plan.target).binder(fault.link)))
    return frozenset(roles)


def _on_the_path(history: History, did: Sequence[Fault]) -> tuple[str, ...]:
    """The roles that an error may name for these faults, none of which has ended its victim."""
    if not did:
        return ()
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


def _breaks_its_own(fault: Fault) -> bool:
    """Whether the fault has the client's own process do what can cost it its engine."""
    if isinstance(fault, Raise):
        return fault.victim == "client"
    return isinstance(fault, OnClient) and math.isinf(fault.cost)


def patience_spent(history: History) -> Patience:
    """What the plan's faults cost at most, apart for those that fired before the engine was ready and after.

    A stall of the whole machine is like a delay of everybody, whenever it was.
    """
    ready = next((event.t for event in history.of("client", "startup") if event.kind == "ready"), history.cleanup)
    starting = serving = history.stalled
    for index, (fault, count) in enumerate(zip(history.plan.faults, history.faults, strict=False)):
        if not count.fired:
            continue
        if fired_at(history, index) < ready:
            starting += fault.cost
        else:
            serving += fault.cost
    return Patience(starting, serving)


def killed_at(history: History) -> int:
    """When the first of the faults fired that ended a role (nanoseconds)."""
    faults = enumerate(zip(history.plan.faults, history.faults, strict=False))
    times = [fired_at(history, index) for index, (fault, count) in faults if count.fired and is_fatal(fault, history)]
    return min(times, default=history.began)


def fired_at(history: History, index: int) -> int:
    """When a fault of the plan first did what it is for (nanoseconds)."""
    marks = [event.t for event in history.of(site="fault.fired") if event.number == index]
    frames = [frame.t for frame in history.frames if frame.rule == index]
    return min([*marks, *frames], default=history.began)
