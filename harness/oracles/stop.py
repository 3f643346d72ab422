"""STOP: an orderly shutdown of a live engine ends in its bound, and all leave because they were asked (I38 to I41).

Every rank leaves by itself with the engine's exit code for a stop; nobody needs a signal, and one that comes from
outside during the tear-down ends nobody. Judged where users knew of no death and no fault stood in the way.
"""

from __future__ import annotations

import math

from harness.clock import SECOND
from harness.faults import Terminate
from harness.history import Event, History
from harness.oracles import outcome
from harness.oracles.outcome import SLACK, Ending
from harness.targets import Target
from harness.verdict import Finding

_FOR_THE_LAUNCHER = ("TERM", "INT")
"""Signals that reach every process of a service or a terminal, and that only the launcher obeys."""

_SHARE = 8
"""Which part of the time for a shutdown faults may take without an excuse to use signals."""


def check(history: History, target: Target) -> list[Finding]:
    """One finding for a shutdown that took too long, and one per rank that did not leave in order."""
    marks = list(history.of("client", "shutdown"))
    if not marks or history.ended == "wedge" or outcome.client_was_killed(history):
        return []
    begun = marks[0]
    if outcome.told_dead(history) is not None or not outcome.is_ready(history):
        return []
    cost = _cost(history, begun)
    if math.isinf(cost) or _known_dead(history):
        return []
    done = next((event for event in marks if event.kind in ("done", "failed")), None)
    findings = [*_broken(history, done), *_in_time(history, target, begun, done, cost)]
    return findings + _statuses(history, target, begun, cost)


def _broken(history: History, done: Event | None) -> list[Finding]:
    if done is None or done.kind != "failed":
        return []
    told = Ending.of(done)
    if outcome.is_injected(history, told):
        return []
    return [Finding.of("STOP", f"the shutdown ended with {told.kind}: {told.cause}", done)]


def _cost(history: History, begun: Event) -> float:
    """Seconds that faults of the tear-down, or those that nothing has healed, may have taken from it."""
    total = history.stalled
    for index, fault in enumerate(history.plan.faults):
        if not history.faults[index].fired or (isinstance(fault, Terminate) and fault.signal in _FOR_THE_LAUNCHER):
            continue
        if outcome.is_fatal(fault, history) or outcome.fired_at(history, index) >= begun.t:
            total += fault.cost
    return total


def _known_dead(history: History) -> bool:
    """Whether health has said so, though no request was there to be told."""
    return any(answer.kind == "dead" for answer in history.of("client", "health"))


def _in_time(history: History, target: Target, begun: Event, done: Event | None, cost: float) -> list[Finding]:
    bound = target.bounds(history.plan).stop
    if done is None and history.ended == "done":
        return []  # the client program broke in it, which is for TERM to say
    seconds = ((done.t if done is not None else history.cleanup) - begun.t) / SECOND
    if seconds <= bound + SLACK + cost + outcome.held_up(history):
        return []
    how = "took" if done is not None else "has taken"
    return [Finding.of("STOP", f"the shutdown {how} {seconds:.2f} s, and the engine says {bound:g} s", done or begun)]


def _statuses(history: History, target: Target, begun: Event, cost: float) -> list[Finding]:
    patience = min(target.patience(history.plan).serving, target.bounds(history.plan).stop / _SHARE)
    if history.ended != "done" or cost >= patience:
        return []
    findings, refusing = [], outcome.refusing(history)
    for process in history.processes:
        if process.role not in history.plan.topology.ranks or process.ended_by != "itself" or process.status is None:
            continue
        if (process.ended or 0) >= begun.t and not target.left_in_order(process.status):
            if process.role in refusing:
                return []  # what is wrong with a frame or a collective was found out only now
            how = target.exit_meaning(process.status)
            sentence = f"{process.role} did not leave in order when the engine was stopped: {how}"
            findings.append(Finding("STOP", sentence, process.role, process.ended or 0, f"{process.role}:exit"))
    return findings
