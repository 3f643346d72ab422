"""CAUSE: an error tells the root cause, not one of its consequences (I21; H13 of the relay's clauses).

It names the role that a fault ended, the first if there were several, or else one on the path of what was lost or held
up. What it says of a process's end is true. All users are told the same.
"""

from __future__ import annotations

import re
import signal

from harness.clock import SECOND
from harness.history import History, Process
from harness.oracles import outcome
from harness.oracles.outcome import SLACK, Ending
from harness.targets import Target
from harness.verdict import Finding

_KILLED = re.compile(r"^killed by (SIG\w+|signal \d+)$")
_LEFT = re.compile(r"^left unasked with exit code (\d+)$")


def check(history: History, target: Target) -> list[Finding]:
    """Findings about errors of a dead engine that name the wrong role, or say of its end what is not so."""
    if history.ended != "done" or outcome.client_was_killed(history):
        return []
    if history.stalled >= target.patience(history.plan).serving:
        return []  # the machine alone can have made anybody late
    endings = {
        what: ending
        for what, ending in outcome.endings(history).items()
        if outcome.is_deserved(history, target, ending)
    }
    findings = [finding for what, ending in endings.items() for finding in _judge(history, target, what, ending)]
    return findings + _different(endings)


def _judge(history: History, target: Target, what: str, ending: Ending) -> list[Finding]:
    expected = outcome.blamable(history)
    if expected and ending.culprit not in expected:
        right = " or ".join(filter(None, expected))
        sentence = f"{what} ended with an error that names {ending.culprit or 'nobody'}, not {right}"
        return [Finding("CAUSE", sentence, "client", ending.t)]
    culprit = history.process(ending.culprit)
    if culprit is None:
        return []
    earlier = _died_before(history, target, culprit)
    if earlier is not None:
        sentence = f"{what} ended with an error that names {culprit.role}, and {earlier.role} had died before it"
        return [Finding("CAUSE", sentence, "client", ending.t, f"{earlier.role}:exit")]
    untrue = _untrue(ending.cause, culprit.status)
    if untrue:
        sentence = f"{what} was told that {culprit.role} was {ending.cause}, and its exit says {untrue}"
        return [Finding("CAUSE", sentence, "client", ending.t, f"{culprit.role}:exit")]
    return []


def _died_before(history: History, target: Target, culprit: Process) -> Process | None:
    """Another victim of the plan that died so long before the culprit that nobody can have mixed them up."""
    victims = outcome.killed(history)
    if culprit.role not in victims or culprit.ended is None:
        return None
    margin = int((target.bounds(history.plan).notice + SLACK + history.stalled) * SECOND)
    processes = [process for role in victims if (process := history.process(role)) is not None]
    before = [each for each in processes if each.ended is not None and each.ended < culprit.ended - margin]
    return min(before, key=lambda process: process.ended or 0, default=None)


def _untrue(cause: str, status: int | None) -> str:
    """What the exit status says, if the cause says something else; empty where they agree or the cause does not say."""
    killed, left = _KILLED.match(cause), _LEFT.match(cause)
    if status is None or (killed is None and left is None):
        return ""
    if killed is not None and killed[1] in _signal_names(status):
        return ""
    if left is not None and int(left[1]) == status:
        return ""
    return f"status {status}"


def _signal_names(status: int) -> tuple[str, ...]:
    if status >= 0:
        return ()
    try:
        return (signal.Signals(-status).name, f"signal {-status}")
    except ValueError:
        return (f"signal {-status}",)


def _different(endings: dict[str, Ending]) -> list[Finding]:
    """Two users who were told different things of the same death."""
    told = [(what, ending) for what, ending in endings.items() if ending.kind in outcome.DEATHS]
    for what, ending in told[1:]:
        first, said = told[0]
        if (ending.culprit, ending.cause) != (said.culprit, said.cause):
            sentence = (
                f"{what} was told of {ending.culprit or 'nobody'}: {ending.cause}, "
                f"and {first} of {said.culprit or 'nobody'}: {said.cause}"
            )
            return [Finding("CAUSE", sentence, "client", ending.t)]
    return []
