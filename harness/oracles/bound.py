"""BOUND: nothing is larger or later than the engine itself declares (I11, I15, I18; H1 of the relay's clauses).

From the death of a process to the error of everybody who waits for the engine no more passes than the engine says, and
whoever asks later is told at once. The engine never has more requests under way than it may hold. A stall of the
machine and what faults took from the client program are added to every bound, and some slack for a busy machine.
"""

from __future__ import annotations

import math

from harness.clock import SECOND
from harness.history import Event, History, Process
from harness.oracles import outcome
from harness.oracles.outcome import SLACK, Outcome
from harness.targets import Target
from harness.verdict import Finding


def check(history: History, target: Target) -> list[Finding]:
    """Findings about errors that came too late, and about more requests at once than there may be."""
    if history.ended == "wedge" or outcome.client_was_killed(history):
        return []
    return [*_late(history, target), *_too_many(history)]


def _late(history: History, target: Target) -> list[Finding]:
    more = SLACK + history.stalled + outcome.held_up(history)
    dead = _first_death(history)
    if dead is None or dead.ended is None or math.isinf(more):
        return []
    bounds = target.bounds(history.plan)
    findings = []
    for request in outcome.requests(history):
        if request.sent > dead.ended or (request.ended is not None and request.ended <= dead.ended):
            continue
        told = request.ended if request.ended is not None else history.cleanup
        if (seconds := (told - dead.ended) / SECOND) > bounds.notice + more:
            findings.append(_finding(f"request {request.name} was told", seconds, dead, bounds.notice, told))
    for event in history.of("client", "startup"):
        seconds = (event.t - dead.ended) / SECOND
        if event.kind == "failed" and seconds > bounds.notice + bounds.leave + more:
            findings.append(_finding("the start-up ended", seconds, dead, bounds.notice + bounds.leave, event.t))
    return findings + _slow_refusals(history, bounds.notice, more)


def _finding(what: str, seconds: float, dead: Process, bound: float, t: int) -> Finding:
    sentence = f"{what} {seconds:.2f} s after the death of {dead.role}, and the engine says {bound:g} s"
    return Finding("BOUND", sentence, "client", t, f"{dead.role}:exit")


def _first_death(history: History) -> Process | None:
    """The first of the ranks that a fault ended, if that was before the client began to stop the engine."""
    leaving, ranks = outcome.leaving_at(history), history.plan.topology.ranks
    victims = [process for role in outcome.killed(history) if (process := history.process(role)) is not None]
    died = [process for process in victims if process.role in ranks and process.ended is not None]
    if leaving is not None:
        died = [process for process in died if (process.ended or 0) < leaving]
    return min(died, key=lambda process: process.ended or 0, default=None)


def _slow_refusals(history: History, bound: float, more: float) -> list[Finding]:
    """Requests that were sent when another one had been told of the death already."""
    told = outcome.told_dead(history)
    findings = []
    for request in outcome.requests(history):
        if told is None or request.sent <= told.t or not request.failed:
            continue
        if (seconds := (request.failed[0].t - request.sent) / SECOND) > bound + more:
            sentence = f"request {request.name} was refused {seconds:.2f} s after it was sent to a dead engine"
            findings.append(Finding("BOUND", sentence, "client", request.failed[0].t))
    return findings


def _too_many(history: History) -> list[Finding]:
    """Requests that were certainly under way together.

    A request that was served n tokens is under way from when rank 0 took it until it has sent n more messages of
    outputs, since each brings one token of a request at most.
    """
    most = next((event.value for event in history.of("client", "startup") if event.kind == "ready"), 0)
    first = history.plan.topology.ranks[0]
    taken = _taken(history, first)
    outputs = [event.t for event in history.of(first, "output.send", "before") if event.kind == "outputs"]
    if not most or len(taken) <= most:
        return []
    spans = []
    for request, event in taken:
        after = [t for t in outputs if t > event.t]
        needed = len(request.tokens)
        spans.append((event, after[needed - 1] if len(after) >= needed else history.cleanup))
    for event, _ in spans:
        under_way = sum(begin.t <= event.t < end for begin, end in spans)
        if under_way > most:
            sentence = f"{under_way} requests were under way at once, and the engine may hold {most}"
            return [Finding.of("BOUND", sentence, event)]
    return []


def _taken(history: History, first: str) -> list[tuple[Outcome, Event]]:
    """The requests that were served, each with rank 0's event of taking it; none where that cannot be told."""
    requests = outcome.requests(history)
    sent = [event for event in history.of("client", "input.send", "after") if event.kind == "add"]
    if len(sent) != len(requests):
        return []  # one of them was never sent, and nothing says which
    arrived = {event.number: event for event in history.of(first, "input.recv", "after") if event.kind == "add"}
    pairs = zip(requests, sent, strict=True)
    return [(request, arrived[event.number]) for request, event in pairs if request.served and event.number in arrived]
