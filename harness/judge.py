"""From a history to a verdict: the proof of a wedge first, then every oracle, then whether the faults fired at all."""

from __future__ import annotations

from harness import plan as plans
from harness import waits
from harness.clock import SECOND
from harness.history import History
from harness.oracles import check_all, outcome
from harness.seam.bug_canary import REACHED, TRIGGERED
from harness.targets import get
from harness.unreached import explained
from harness.verdict import BugTrace, Finding, Grade, Verdict, Word


def judge(history: History, scenario: str = "", seed: int = 0) -> Verdict:
    """The verdict on one history. Pure: a saved history gets the same one.

    Raises PlanError for a plan that the target cannot have run, such as one with a plugin that is not there any more.
    """
    target = get(history.plan.target)
    if history.plan.engine.plugins:
        target.check(history.plan)  # a strategy that a plugin brings is known only after that
    certificate = waits.examine(history, target)
    findings = () if certificate is not None else check_all(history, target)
    word, grade = _word(history, certificate, findings)
    ended = [request for request in outcome.requests(history) if not request.canary]
    served = sum(request.served for request in ended)
    refused = sum(request.refused for request in ended)
    if outcome.startup_error(history) is not None:
        refused = len(history.plan.workload.requests)
    return Verdict(
        verdict=word,
        grade=grade,
        plan=plans.to_builtins(history.plan),
        digest=history.plan.digest,
        target=history.plan.target,
        scenario=scenario,
        seed=seed,
        blame=certificate.blame if certificate else None,
        proof=certificate.proof if certificate else None,
        faults=explained(history),
        findings=findings,
        bugs=bug_traces(history),
        fingerprint=certificate.fingerprint if certificate else _fingerprint(findings),
        served=served,
        refused=refused,
        seconds=round((history.cleanup - history.began) / SECOND, 3),
        versions=history.versions,
    )


def _word(
    history: History, certificate: waits.Certificate | None, findings: tuple[Finding, ...]
) -> tuple[Word, Grade | None]:
    if certificate is not None:
        return "wedged", certificate.grade
    if history.lost_events:
        return "budget", None  # what was not recorded cannot be judged
    if findings:
        return "violated", None
    if history.ended != "done":
        return "budget", None
    return ("vacuous", None) if is_vacuous(history) else ("passed", None)


def is_vacuous(history: History) -> bool:
    """Whether a required fault never fired, or, if all are optional, none of them did."""
    if any(not count.optional and not count.fired for count in history.faults):
        return True
    return bool(history.faults) and not any(count.fired for count in history.faults)


def bug_traces(history: History) -> tuple[BugTrace, ...]:
    """What the canaries of seeded bugs have noted."""
    marks = [event for event in history.of(side="mark") if event.site in (REACHED, TRIGGERED)]
    found = []
    for bug in sorted({mark.kind for mark in marks}):
        roles = {
            site: tuple(dict.fromkeys(mark.role for mark in marks if (mark.kind, mark.site) == (bug, site)))
            for site in (REACHED, TRIGGERED)
        }
        found.append(BugTrace(bug, roles[REACHED], roles[TRIGGERED]))
    return tuple(found)


def _fingerprint(findings: tuple[Finding, ...]) -> str:
    """Equal for violations of the same rules by the same kinds of roles."""
    return "+".join(sorted({f"{finding.oracle}:{_anybody(finding.role)}" for finding in findings})) if findings else ""


def _anybody(role: str) -> str:
    return "rank+" if role.startswith("dp") and not role.endswith("rank0") else role
