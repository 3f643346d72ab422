"""DEATH: a death reaches everybody, once and for ever the same; and nothing else is called one.

After a fatal fault every unfinished request ends with EngineDeadError (StartupError before readiness); every later call
repeats it (I10 to I14); every surviving rank leaves by itself with the engine's exit code for a dead peer, or as it has
to if what comes to it is broken as well. After mild faults, shorter together than the engine's deadlines, the engine
must serve. After lossy faults it may refuse, with a typed error. Whom the error names is for CAUSE to judge.
"""

from __future__ import annotations

import signal

from harness.clock import SECOND
from harness.faults import AGAIN
from harness.history import History, Process
from harness.oracles import outcome
from harness.oracles.outcome import Ending
from harness.targets import Target
from harness.verdict import Finding


def check(history: History, target: Target) -> list[Finding]:
    """Findings about errors that are missing, wrong, misattributed or not latched, and about survivors."""
    if history.ended != "done" or outcome.client_was_killed(history):
        return []
    endings = outcome.endings(history).items()
    findings = [finding for what, ending in endings for finding in _judge(history, target, what, ending)]
    findings += _latched(history)
    if outcome.killed(history):
        findings += _survivors(history, target)
    return findings


def _judge(history: History, target: Target, what: str, ending: Ending) -> list[Finding]:
    if ending.kind not in outcome.DEATHS:
        if what == "the start-up" or outcome.is_injected(history, ending):
            return []  # for START to judge, or the error of a call of this very client
        return [Finding("DEATH", f"{what} ended with {ending.kind}: {ending.cause}", "client", ending.t)]
    if outcome.is_deserved(history, target, ending):
        return []
    sentence = f"{what} was refused ({ending.culprit}: {ending.cause}) although nothing fatal was done to the engine"
    return [Finding("DEATH", sentence, "client", ending.t)]


def _latched(history: History) -> list[Finding]:
    bad = next((event for event in history.of("client", "latched") if not event.ok), None)
    if bad is None:
        return []
    return [Finding.of("DEATH", f"a call after the death ended differently: {bad.kind}: {bad.text}", bad)]


def _had_begun(history: History, role: str) -> bool:
    """Whether the process got as far as the target's own code."""
    return any(event.site != "start" and not event.site.startswith("fault.") for event in history.of(role))


def _survivors(history: History, target: Target) -> list[Finding]:
    dead = outcome.killed(history)
    leaving, died = outcome.leaving_at(history), outcome.killed_at(history)
    if leaving is not None and leaving < died:
        return []  # the engine was already asked to stop: its ranks leave in order, not for a peer
    notice = int(target.bounds(history.plan).notice * SECOND)
    unnoticed = leaving is not None and leaving < died + notice
    findings, refusing = [], outcome.refusing(history)
    for process in history.processes:
        if process.role == "client" or process.role.removesuffix(AGAIN) in dead or process.status is None:
            continue
        if process.status == -signal.SIGTERM and not _had_begun(history, process.role):
            continue  # it cannot leave by itself before it runs
        if process.ended_by == "itself" and unnoticed and target.left_in_order(process.status):
            continue  # it was asked to stop before anybody could know of the death
        if process.ended_by == "itself" and (_ran_out(history, target, process) or process.role in refusing):
            continue
        if process.ended_by != "itself" or not target.left_for_a_peer(process.status):
            how = target.exit_meaning(process.status)
            sentence = f"{process.role} did not leave for the death of {', '.join(dead)} by itself: {how}"
            findings.append(Finding("DEATH", sentence, process.role, process.ended or 0, f"{process.role}:exit"))
    return findings


def _ran_out(history: History, target: Target, survivor: Process) -> bool:
    """Whether it left at a deadline that began so long before the death that the death cannot be what it waited for."""
    if survivor.status is None or survivor.ended is None or not target.left_at_a_deadline(survivor.status):
        return False
    victims = [process for role in outcome.killed(history) if (process := history.process(role)) is not None]
    died = min((process.ended for process in victims if process.ended is not None), default=survivor.ended)
    return (survivor.ended - died) / SECOND < target.patience(history.plan).serving + history.stalled
