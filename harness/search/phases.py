"""The phases of a run that can be enumerated: what is asked in it, and between which of the client's notes it lies.

A phase is told apart by marks of the client program alone, so that it means the same for every target and relay.
"""

from __future__ import annotations

from msgspec import Struct

from harness.faults import Close, Fault
from harness.history import Event, History
from harness.plan import EngineOptions, Plan, PlanError, Request, Topology, Workload

BUDGET = 20.0
"""Seconds for one plan of a search: far above the sum of the short timeouts, so that it is never the engine's own."""


class Mark(Struct, frozen=True):
    """A note of the client program: its site and its kind (any, if None)."""

    site: str
    kind: str | None = None

    def first(self, history: History) -> int | None:
        """When it was first made (nanoseconds)."""
        return next((event.t for event in history.of("client", self.site, "mark") if self._is(event)), None)

    def _is(self, event: Event) -> bool:
        return self.kind is None or event.kind == self.kind


class Phase(Struct, frozen=True):
    """A part of every run of one workload: from ``since`` (the begin, if None) until ``until`` (the end, if None).

    ``faults`` belong to what is asked, such as the stream that is closed for an abort.
    """

    name: str
    title: str
    workload: Workload = Workload()
    faults: tuple[Fault, ...] = ()
    since: Mark | None = None
    until: Mark | None = None

    def plan(self, tp: int, relay: str, *, target: str = "engine", start: str = "fork") -> Plan:
        """The plan of the phase, with nothing broken."""
        return Plan(
            topology=Topology(tp=tp, start="spawn" if start == "spawn" else "fork"),
            engine=EngineOptions(relay=relay) if relay else EngineOptions(),
            workload=self.workload,
            faults=self.faults,
            budget=BUDGET,
            target=target,
        )

    def is_passed_by(self, history: History) -> bool:
        """Whether a run has come through the phase."""
        return all(mark is None or mark.first(history) is not None for mark in (self.since, self.until))

    def window(self, history: History) -> tuple[int, int]:
        """From when to when the phase lasted in a run (nanoseconds); ValueError if the run has not come through it."""
        begin = history.began if self.since is None else self.since.first(history)
        end = history.cleanup if self.until is None else self.until.first(history)
        if begin is None or end is None:
            raise ValueError(f"a run of phase {self.name} has no {self.since if begin is None else self.until}")
        return begin, end


_ONE = Workload(requests=(Request(prompt=(1, 2, 3), max_tokens=2),))

PHASES: dict[str, Phase] = {
    phase.name: phase
    for phase in (
        Phase("handshake", "from the first process until the engine is ready", _ONE, until=Mark("startup", "ready")),
        Phase(
            "request",
            "a first request, from its sending to its end",
            _ONE,
            since=Mark("request.sent"),
            until=Mark("request.finished"),
        ),
        Phase(
            "abort",
            "a stream that is closed after its first token, until the engine is asked what it still holds",
            Workload(requests=(Request(prompt=(1, 2, 3), max_tokens=6),)),
            faults=(Close(request=0, after_tokens=1, how="aclose", optional=True),),
            since=Mark("request.token"),
            until=Mark("demand", "begin"),
        ),
        Phase(
            "utility",
            "one call of a utility, from its sending to its answer",
            Workload(requests=_ONE.requests, utilities=("step_counters",)),
            since=Mark("utility", "begin"),
            until=Mark("utility", "end"),
        ),
        Phase(
            "shutdown",
            "the stop of an engine that has nothing to do, until its last process has ended",
            _ONE,
            since=Mark("shutdown", "begin"),
        ),
    )
}


def get(name: str) -> Phase:
    """The phase of that name. Raises PlanError."""
    if name not in PHASES:
        raise PlanError(f"no phase '{name}' can be enumerated; there is {', '.join(PHASES)}")
    return PHASES[name]
