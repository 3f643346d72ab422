"""AGREE: all ranks do the same, in the same order, up to where the run ended (I47, I48; H4 of the relay's clauses).

Equal numbers in a group are one rendezvous, and gloo matches by order alone: so each number must be the same operation
on every rank that issued it. Between two step frames of the relay every rank issues the same operations. Where all left
in order, all have issued equally many. What a fault of the plan changed in a collective is not held against anybody.
"""

from __future__ import annotations

from collections import Counter

from harness.faults import OnCollectives
from harness.history import Event, History
from harness.oracles import outcome
from harness.seam.operations import COLLECTIVES
from harness.targets import Target
from harness.verdict import Finding

Issued = dict[str, dict[int, Event]]
"""The collectives of one group: by role, and by number."""


def check(history: History, target: Target) -> list[Finding]:
    """One finding per group whose ranks went apart, at the first collective in which they did."""
    if any(isinstance(fault, OnCollectives) for fault in outcome.fired(history)):
        return []
    ranks = history.plan.topology.ranks
    groups: dict[str, Issued] = {}
    for event in history.of(side="before"):
        group, _, operation = event.site.rpartition(".")
        if operation in COLLECTIVES and event.number >= 0 and event.role in ranks:
            groups.setdefault(group, {}).setdefault(event.role, {})[event.number] = event
    findings = []
    for group, issued in groups.items():
        apart = _other_operation(group, issued) or _other_count(history, target, group, issued)
        if apart is not None:
            findings.append(apart)
    if not findings:
        findings += _steps(history)
    return findings


def _other_operation(group: str, issued: Issued) -> Finding | None:
    numbers = sorted({number for mine in issued.values() for number in mine})
    for number in numbers:
        here = {role: mine[number] for role, mine in issued.items() if number in mine}
        sites = Counter(event.site for event in here.values())
        if len(sites) > 1:
            usual = max(sites, key=lambda site: (sites[site], site == next(iter(here.values())).site))
            odd = next(event for event in here.values() if event.site != usual)
            others = next(role for role, event in here.items() if event.site == usual)
            sentence = f"{odd.role} issued {odd.site} as {group} #{number}, {others} issued {usual}"
            return Finding.of("AGREE", sentence, odd)
    return None


def _other_count(history: History, target: Target, group: str, issued: Issued) -> Finding | None:
    """Whoever has issued more than another although both left in order."""
    if not outcome.left_in_order(history, target) or len(issued) < len(history.plan.topology.ranks):
        return None
    most = max(issued, key=lambda role: len(issued[role]))
    least = min(issued, key=lambda role: len(issued[role]))
    if len(issued[most]) == len(issued[least]):
        return None
    sentence = f"{most} issued {len(issued[most])} operations of {group}, {least} only {len(issued[least])}"
    return Finding.of("AGREE", sentence, issued[most][max(issued[most])])


def _steps(history: History) -> list[Finding]:
    """The first step in which a rank issued other operations than rank 0."""
    first, *others = history.plan.topology.ranks
    steps = _by_step(history, first, "relay.send")
    for role in others:
        mine = _by_step(history, role, "relay.recv")
        for number in sorted(steps.keys() & mine.keys()):
            if number + 1 in steps and number + 1 in mine and steps[number][1] != mine[number][1]:
                ours, theirs = (", ".join(each[number][1]) or "nothing" for each in (mine, steps))
                sentence = f"{role} issued {ours} in step {number}, {first} {theirs}"
                return [Finding.of("AGREE", sentence, mine[number][0])]
    return []


def _by_step(history: History, role: str, site: str) -> dict[int, tuple[Event, list[str]]]:
    """For each numbered step frame its event and the operations that the role issued until the next one."""
    side = "before" if site.endswith("send") else "after"
    found: dict[int, tuple[Event, list[str]]] = {}
    operations: list[str] = []
    for event in history.of(role):
        if (event.site, event.side) == (site, side) and event.kind == "step" and event.number >= 0:
            if event.number not in found:  # rank 0 may send it once to each rank
                operations = []
                found[event.number] = (event, operations)
        elif event.side == "before" and event.site.rpartition(".")[2] in COLLECTIVES:
            operations.append(event.site)
    return found
