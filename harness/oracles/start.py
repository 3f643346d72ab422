"""START: a start-up ends once, in time, with an engine that is ready or an error that helps (I34, I35; H1, H9).

The error is the engine's own for a start that fails, and it names a role and a cause. Nothing is asked of the engine or
served by it before it has said that it is ready.
"""

from __future__ import annotations

import math

from harness.clock import SECOND
from harness.history import Event, History
from harness.oracles import outcome
from harness.oracles.outcome import SLACK, Ending
from harness.targets import Target
from harness.verdict import Finding

_TYPED = "StartupError"
"""What the engine's client raises for a start that fails."""


def check(history: History, target: Target) -> list[Finding]:
    """Findings about the end of the start-up, and one for what was done before it."""
    marks = list(history.of("client", "startup"))
    if history.ended == "wedge" or not marks or outcome.client_was_killed(history):
        return []
    begun, *ends = marks
    if any(fault.victim == "client" and outcome.is_fatal(fault, history) for fault in outcome.fired(history)):
        return []
    return [
        *_once(history, begun, ends),
        *_typed(history, ends),
        *_in_time(history, target, begun, ends),
        *_early(history),
    ]


def _once(history: History, begun: Event, ends: list[Event]) -> list[Finding]:
    if len(ends) == 1 or (not ends and history.ended != "done"):
        return []
    how = f"ended {len(ends)} times" if ends else "ended neither with an engine that is ready nor with an error"
    return [Finding.of("START", f"the start-up {how}", ends[-1] if ends else begun)]


def _typed(history: History, ends: list[Event]) -> list[Finding]:
    failed = next((event for event in ends if event.kind == "failed"), None)
    if failed is None:
        return []
    told = Ending.of(failed)
    if told.kind == "ConfigError" and outcome.may_refuse_config(history):
        return []
    if outcome.is_injected(history, told):
        return []
    if told.kind != _TYPED:
        return [Finding.of("START", f"the start-up ended with {told.kind}: {told.cause}", failed)]
    missing = [what for what, said in (("role", told.culprit), ("cause", told.cause)) if not said]
    if missing and not ("role" in missing and "" in outcome.blamable(history)):
        return [
            Finding.of("START", f"the start-up ended with an error that names no {' and no '.join(missing)}", failed)
        ]
    return []


def _in_time(history: History, target: Target, begun: Event, ends: list[Event]) -> list[Finding]:
    bound, more = target.bounds(history.plan).start, SLACK + history.stalled + outcome.held_up(history)
    if math.isinf(more):
        return []
    until = ends[0].t if ends else history.cleanup
    seconds = (until - begun.t) / SECOND
    if seconds <= bound + more:
        return []
    sentence = f"the start-up took {seconds:.1f} s, and the engine says {bound:g} s"
    return [Finding.of("START", sentence, ends[0] if ends else begun)]


def _early(history: History) -> list[Finding]:
    ready = outcome.ready_at(history)
    for event in history.events:
        if ready is not None and event.t >= ready:
            return []
        if _serves(event):
            return [Finding.of("START", f"{event.role} was at work before the engine was ready", event)]
    return []


def _serves(event: Event) -> bool:
    if event.side == "mark":
        return event.site in ("request.sent", "request.token")
    return (event.site, event.kind) in (
        ("input.send", "add"),
        ("input.send", "utility"),
        ("output.send", "outputs"),
        ("relay.send", "step"),
    )
