"""Oracles: rules about histories, one file each, each a pure function from a history to findings.

The three asserts of the project are *no wedge* (TERM, PROGRESS, START and STOP here, and the proof in `harness.waits`),
*ordered done-frame delivery* (ORDER, CONSERVE) and *EngineDeadError propagation* (DEATH, CAUSE). GOLD, AGREE, HEALTH
and BOUND ask whether what is said and done is right, alike, true and within limits; BLAST whether what is wrong with
one request stays with it; LEAK, ORPHAN and RESIDUE what is left at the end.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.history import History
from harness.oracles import (
    agree,
    blast,
    bound,
    cause,
    conserve,
    death,
    gold,
    health,
    leak,
    order,
    orphan,
    progress,
    residue,
    start,
    stop,
    term,
)
from harness.targets import Target
from harness.verdict import Finding

Oracle = Callable[[History, Target], list[Finding]]

ORACLES: dict[str, Oracle] = {
    "TERM": term.check,
    "PROGRESS": progress.check,
    "START": start.check,
    "ORDER": order.check,
    "CONSERVE": conserve.check,
    "GOLD": gold.check,
    "AGREE": agree.check,
    "DEATH": death.check,
    "CAUSE": cause.check,
    "HEALTH": health.check,
    "BOUND": bound.check,
    "BLAST": blast.check,
    "STOP": stop.check,
    "LEAK": leak.check,
    "ORPHAN": orphan.check,
    "RESIDUE": residue.check,
}


def check_all(history: History, target: Target) -> tuple[Finding, ...]:
    """The findings of every oracle, in the order of the table."""
    return tuple(finding for oracle in ORACLES.values() for finding in oracle(history, target))
