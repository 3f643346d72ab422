"""BLAST: what goes wrong with one request stays with it (I28 of the client's invariants).

A request that nobody can serve ends with a typed error of its own. Every other one is served, unless the engine died,
the client gave the request up or asked for its abort, or as many requests as the engine may hold were under way.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.history import Event, History
from harness.oracles import outcome
from harness.oracles.outcome import Outcome
from harness.targets import Target
from harness.verdict import Finding

_OWN = "EngineGenerateError"
"""What the engine's client raises for a request that it cannot even send."""


def check(history: History, target: Target) -> list[Finding]:
    """One finding per request that was refused or ended although nothing was wrong with it, or that was not refused."""
    requests = outcome.requests(history)
    leaving = next((event.t for event in history.of("client", "shutdown") if event.kind == "begin"), history.cleanup)
    findings = []
    for request in requests:
        if request.poison and not request.busy:
            sentence = _poisoned(request)
        else:
            sentence = _sound(history, request, requests, leaving)
        if sentence:
            findings.append(Finding("BLAST", f"request {request.name} {sentence}", "client", request.sent))
    return findings


def _poisoned(request: Outcome) -> str:
    if request.served:
        return f"should have been refused, and was served {len(request.tokens)} tokens"
    wrong = next((ending for ending in request.failed if ending.kind not in (_OWN, *outcome.DEATHS)), None)
    if wrong is not None:
        return f"should have been refused by {_OWN}, and ended with {wrong.kind}: {wrong.cause}"
    end = next((end for end in request.finished if not end.text.startswith("invalid|")), None)
    return f"should have been refused for what it is, and ended with {end.kind}: {end.text}" if end is not None else ""


def _sound(history: History, request: Outcome, requests: Sequence[Outcome], leaving: int) -> str:
    end = next((end for end in request.finished if end.kind in ("abort", "error")), None)
    if end is None:
        return ""
    if end.kind == "abort":
        return "" if request.aborted is not None or end.t >= leaving else "was aborted, and nobody had asked for that"
    if not request.busy:
        return f"was refused, and nothing was wrong with it: {end.text.partition('|')[2]}"
    most, others = _most(history), _others(request, requests, end)
    if others >= most:
        return ""
    return f"was refused as one too many, with {others} others under way of {most} that the engine may hold"


def _most(history: History) -> int:
    return next((event.value for event in history.of("client", "startup") if event.kind == "ready"), 0)


def _others(request: Outcome, requests: Sequence[Outcome], end: Event) -> int:
    """How many others the engine may have had at that end: what the client has left counts until the engine says so."""
    there = [other for other in requests if other is not request and other.sent <= end.t and not other.busy]
    return sum(not any(ending < request.sent for ending in _endings(other)) for other in there if not _unsent(other))


def _endings(request: Outcome) -> list[int]:
    return [*(end.t for end in request.finished), *(ending.t for ending in request.failed)]


def _unsent(request: Outcome) -> bool:
    return any(ending.kind == _OWN for ending in request.failed)
