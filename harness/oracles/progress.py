"""PROGRESS: an engine that lives and owes something gets on with it (I1, I18, I46; H5, H6 of the relay's clauses).

While a request is under way, nothing succeeds anywhere for longer than the engine allows itself only if the engine then
says so. Nobody starves: no request waits while one that was sent after it comes and is served. And with every fault
healed a few steps are enough for a small request: an engine that is busy with something else for ever makes none.
"""

from __future__ import annotations

import math
from itertools import pairwise

from harness.clock import SECOND
from harness.faults import OnFrames, SlowReader
from harness.history import Event, History
from harness.oracles import outcome
from harness.oracles.outcome import SLACK, Outcome
from harness.seam.operations import COLLECTIVES
from harness.targets import Target
from harness.verdict import Finding

_STEPS_PER_TOKEN, _STEPS_MORE = 4, 16
"""Messages of outputs in which the canary of the demand must be over: one each token, and room for others."""


def check(history: History, target: Target) -> list[Finding]:
    """Findings about silence, about a starved request, and about a canary that took too many steps."""
    if history.ended == "wedge" or outcome.client_was_killed(history):
        return []
    return [*_silence(history, target), *_starved(history), *_busy(history)]


def _silence(history: History, target: Target) -> list[Finding]:
    limit, ready = target.bounds(history.plan).step, outcome.ready_at(history)
    more = SLACK + history.stalled + outcome.held_up(history)
    if limit is None or ready is None or math.isinf(more):
        return []
    spans = [(each.sent, each.ended or history.cleanup, each) for each in outcome.requests(history)]
    moved = [event for event in history.events if ready <= event.t <= history.cleanup and _moves(event)]
    times = [*(event.t for event in moved), history.cleanup]
    for event, until in zip(moved, times[1:], strict=True):
        waiting = next((each for sent, ended, each in spans if sent <= event.t and ended > event.t), None)
        seconds = (until - event.t) / SECOND
        if waiting is not None and seconds > limit + more:
            sentence = (
                f"nothing moved for {seconds:.2f} s while request {waiting.name} was under way, "
                f"and the engine allows itself {limit:g} s"
            )
            return [Finding.of("PROGRESS", sentence, event)]
    return []


def _moves(event: Event) -> bool:
    """Whether the event is one by which something gets on, or its user is told that it does not."""
    if event.side == "mark":
        return event.site.startswith("request.")
    operation = event.site.rpartition(".")[2]
    return event.ok and event.side == "after" and operation in ("send", "recv", *COLLECTIVES)


def _starved(history: History) -> list[Finding]:
    fired = outcome.fired(history)
    if any(isinstance(fault, OnFrames) and fault.link in ("input", "output") for fault in fired):
        return []
    slow = {fault.request for fault in fired if isinstance(fault, SlowReader)}
    requests = outcome.requests(history)
    served = [each for each in requests if each.served and not each.canary]
    for request in requests:
        if request.poison or request.busy or request.number in slow or request.aborted is not None:
            continue
        for since, until in _waits(history, request):
            later = next((each for each in served if since < each.sent and (each.ended or 0) < until), None)
            if later is not None:
                sentence = f"request {request.name} got nothing while {later.name}, sent after it, came and was served"
                return [
                    Finding("PROGRESS", sentence, "client", later.ended or 0, f"client:request.sent of {later.name}")
                ]
    return []


def _waits(history: History, request: Outcome) -> list[tuple[int, int]]:
    """From when to when the request waited for a token that it got, or would have had to get (nanoseconds)."""
    tokens = [event.t for event in history.of("client", "request.token") if event.number == request.number]
    times = [request.sent, *tokens]
    if request.ended is None and history.ended == "done":
        times.append(history.cleanup)
    return list(pairwise(times))


def _busy(history: History) -> list[Finding]:
    for canary in (request for request in outcome.requests(history) if request.canary):
        ended = canary.ended or history.cleanup
        sends = history.of(history.plan.topology.ranks[0], "output.send", "after")
        steps = sum(canary.sent <= event.t <= ended for event in sends)
        if steps > _STEPS_PER_TOKEN * max(1, canary.shorter) + _STEPS_MORE:
            sentence = f"with every fault healed request {canary.name} for {canary.shorter} tokens took {steps} steps"
            return [Finding("PROGRESS", sentence, history.plan.topology.ranks[0], ended)]
    return []
