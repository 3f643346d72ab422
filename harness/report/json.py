"""The JSON of every command: one object, with the words of the terminal report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import structs

from harness.bug import Bug
from harness.outcome import Outcome
from harness.scenario import Scenario
from harness.search.score import Found, HuntResult
from harness.verdict import Verdict


def verdict_object(verdict: Verdict) -> dict[str, Any]:
    """One verdict."""
    built: dict[str, Any] = msgspec.to_builtins(verdict)
    if verdict.blame is not None:
        built["blame"]["waits"] = [
            {
                "role": edge.role,
                "site": edge.site,
                "for": edge.waits_for,
                "since_ms": edge.since_ms,
                "ended_by": list(edge.ended_by),
                "why": edge.why,
            }
            for edge in verdict.blame.waits
        ]
    built["faults"] = [
        {
            "kind": count.kind,
            "instant": count.fault,
            "victim": count.victim,
            "optional": count.optional,
            "armed": count.armed,
            "reached": count.reached,
            "fired": count.fired,
            "why": count.why,
        }
        for count in verdict.faults
    ]
    return built


def bug_object(bug: Bug) -> dict[str, Any]:
    """One line of the list of bugs."""
    return {
        "id": bug.id,
        "name": bug.name,
        "group": bug.group,
        "title": bug.title,
        "report": bug.report,
        "rules": list(bug.rules),
        "edge": bug.edge,
        "faults": bug.faults,
        "relay": bug.engine.relay,
        "plugin": bug.plugin,
    }


def outcome_object(outcome: Outcome) -> dict[str, Any]:
    """All runs of one plan: its first finding, and how often each verdict came up; what was seen of a seeded bug."""
    tally, sighting = outcome.tally, outcome.sighting
    seen = {"bug": msgspec.to_builtins(sighting)} if sighting is not None else {}
    return {
        **verdict_object(outcome.shown.verdict),
        "member": outcome.member.name,
        "expected": outcome.expected,
        "as_expected": outcome.as_expected,
        "runs": tally.runs,
        "fired": outcome.fired,
        "tally": tally.words,
        **seen,
    }


def outcomes_object(outcomes: Sequence[Outcome], *, single: bool) -> dict[str, Any]:
    """Several plans, or the one."""
    if single and outcomes:
        return outcome_object(outcomes[0])
    return {
        "as_expected": all(outcome.as_expected for outcome in outcomes),
        "plans": [outcome_object(outcome) for outcome in outcomes],
    }


def hunt_object(result: HuntResult) -> dict[str, Any]:
    """A hunt: its table, and each finding as a verdict."""
    built: dict[str, Any] = msgspec.to_builtins(structs.replace(result, found=()))
    built["blind"] = result.blind
    built["found"] = [found_object(found) for found in result.found]
    return built


def found_object(found: Found) -> dict[str, Any]:
    """One failure, as a verdict, and how it was confirmed and shrunk."""
    return {
        **verdict_object(found.verdict),
        "met": found.met,
        "faults_before": found.faults_before,
        "runs": found.confirmed.runs,
        "tally": found.confirmed.words,
        "shrink_runs": found.shrink_runs,
    }


def scenario_object(scenario: Scenario) -> dict[str, Any]:
    """One line of the list."""
    return {
        "name": scenario.name,
        "group": scenario.group,
        "title": scenario.title,
        "report": scenario.report,
        "tags": list(scenario.tags),
        "plans": len(scenario.members),
        "expect": dict(scenario.members[0].expect),
    }


def encode(built: dict[str, Any]) -> str:
    """The object as one line."""
    return msgspec.json.encode(built).decode()
