"""DEATH: a death reaches everybody, once and for ever the same, with the right name; and nothing else is called one.

After a fatal fault every unfinished request ends with EngineDeadError (StartupError before readiness) that names the
dead role; every later call repeats it (I10 to I14); every surviving rank leaves by itself with the engine's exit code
for a dead peer. After mild faults, shorter together than the engine's deadlines, the engine must serve. After lossy
faults it may refuse, with a typed error that names a role on the path of the loss.
"""

from __future__ import annotations

import signal

from harness.faults import AGAIN
from harness.history import History
from harness.oracles import outcome
from harness.oracles.outcome import Ending
from harness.targets import Target
from harness.verdict import Finding


def check(history: History, target: Target) -> list[Finding]:
    """Findings about errors that are missing, wrong, misattributed or not latched, and about survivors."""
    if history.ended != "done" or outcome.client_was_killed(history):
        return []
    asked = [request for request in outcome.requests(history) if request.failed]
    # What a request that nobody can serve ends with is for BLAST to judge, unless it is the engine's death.
    endings = {r.name: r.failed[0] for r in asked if not r.poison or r.failed[0].kind in outcome.DEATHS}
    start = outcome.startup_error(history)
    if start is not None:
        endings["the start-up"] = start
    demand = outcome.demand_error(history)
    if demand is not None:
        endings["the demand"] = demand
    findings = [finding for what, ending in endings.items() for finding in _judge(history, target, what, ending)]
    findings += _latched(history)
    if outcome.killed(history):
        findings += _survivors(history, target)
    return findings


def _judge(history: History, target: Target, what: str, ending: Ending) -> list[Finding]:
    if ending.kind == "ConfigError" and outcome.may_refuse_config(history):
        return []
    if ending.kind not in outcome.DEATHS:
        return [Finding("DEATH", f"{what} ended with {ending.kind}: {ending.cause}", "client", ending.t)]
    limit, spent = target.patience(history.plan), outcome.patience_spent(history)
    if spent.starting < limit.starting and spent.serving < limit.serving:
        sentence = (
            f"{what} was refused ({ending.culprit}: {ending.cause}) although nothing fatal was done to the engine"
        )
        return [Finding("DEATH", sentence, "client", ending.t)]
    expected = outcome.blamable(history)
    if expected and ending.culprit not in expected:
        right = " or ".join(filter(None, expected))
        sentence = f"{what} ended with an error that names {ending.culprit or 'nobody'}, not {right}"
        return [Finding("DEATH", sentence, "client", ending.t)]
    return []


def _latched(history: History) -> list[Finding]:
    bad = next((event for event in history.of("client", "latched") if not event.ok), None)
    if bad is None:
        return []
    return [Finding("DEATH", f"a call after the death ended differently: {bad.kind}: {bad.text}", "client", bad.t)]


def _had_begun(history: History, role: str) -> bool:
    """Whether the process got as far as the target's own code."""
    return any(event.site != "start" and not event.site.startswith("fault.") for event in history.of(role))


def _survivors(history: History, target: Target) -> list[Finding]:
    dead = outcome.killed(history)
    leaving = next((e.t for e in history.of("client", "shutdown") if e.kind == "begin"), None)
    if leaving is not None and leaving < outcome.killed_at(history):
        return []  # the engine was already asked to stop: its ranks leave in order, not for a peer
    findings = []
    for process in history.processes:
        if process.role == "client" or process.role.removesuffix(AGAIN) in dead or process.status is None:
            continue
        if process.status == -signal.SIGTERM and not _had_begun(history, process.role):
            continue  # it cannot leave by itself before it runs
        if process.ended_by != "itself" or not target.left_for_a_peer(process.status):
            how = target.exit_meaning(process.status)
            sentence = f"{process.role} did not leave for the death of {', '.join(dead)} by itself: {how}"
            findings.append(Finding("DEATH", sentence, process.role, process.ended or 0))
    return findings
