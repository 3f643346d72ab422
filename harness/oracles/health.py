"""HEALTH: what health says agrees with what the engine can do (I16; I14 for what is latched).

Green when users have been told of a death already, or long after a process of the engine has ended, is a finding. So is
a dead engine that serves, and one that stays stalled, with every fault healed, before and after a request that it has
served meanwhile.
"""

from __future__ import annotations

from itertools import pairwise

from harness.clock import SECOND
from harness.history import Event, History
from harness.oracles import outcome
from harness.oracles.outcome import SLACK
from harness.targets import Target
from harness.verdict import Finding


def check(history: History, target: Target) -> list[Finding]:
    """One finding for the first answer of health that was wrong."""
    if outcome.client_was_killed(history):
        return []
    answers = list(history.of("client", "health"))
    wrong = next((found for answer in answers if (found := _green(history, target, answer)) is not None), None)
    wrong = wrong or _dead_and_serves(history, answers) or _stalled_and_serves(history, answers)
    return [wrong] if wrong is not None else []


def _green(history: History, target: Target, answer: Event) -> Finding | None:
    if answer.kind != "green":
        return None
    told = outcome.told_dead(history)
    if told is not None and told.t < answer.t:
        return Finding.of("HEALTH", "health was green when a user had been told that the engine is dead", answer)
    leaving = outcome.leaving_at(history)
    if leaving is not None and leaving < answer.t:
        return None
    limit = target.bounds(history.plan).notice + SLACK + history.stalled + outcome.held_up(history)
    for process in history.processes:
        if process.role in history.plan.topology.ranks and process.ended is not None:
            seconds = (answer.t - process.ended) / SECOND
            if seconds > limit:
                sentence = f"health was green {seconds:.2f} s after {process.role} had ended"
                return Finding.of("HEALTH", sentence, answer)
    return None


def _dead_and_serves(history: History, answers: list[Event]) -> Finding | None:
    dead = next((answer for answer in answers if answer.kind == "dead"), None)
    if dead is None:
        return None
    served = next((each for each in outcome.requests(history) if each.served and each.sent > dead.t), None)
    if served is None:
        return None
    sentence = f"health said that the engine is dead, and request {served.name} was served after that"
    return Finding.of("HEALTH", sentence, dead)


def _stalled_and_serves(history: History, answers: list[Event]) -> Finding | None:
    """Once is no finding: a stall may have begun just then. Twice, around a request that was served, is one."""
    if history.stalled:
        return None
    stalled = [answer for answer in answers if answer.kind == "stalled"]
    canaries = [request for request in outcome.requests(history) if request.canary and request.served]
    for first, second in pairwise(stalled):
        if any(first.t < each.sent and (each.ended or 0) < second.t for each in canaries):
            told = outcome.Ending.of(second)
            sentence = f"health stayed red around a request that was served ({told.culprit}: {told.cause})"
            return Finding.of("HEALTH", sentence, second)
    return None
