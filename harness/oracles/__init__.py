"""Oracles: rules about histories, one file each, each a pure function from a history to findings.

The three asserts of the project are *no wedge* (TERM here, and the proof in `harness.waits`), *ordered done-frame
delivery* (ORDER, GOLD) and *EngineDeadError propagation* (DEATH). BLAST asks whether what is wrong
with one request stays with it; LEAK, ORPHAN and RESIDUE ask what is left at the end.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.history import History
from harness.oracles import blast, death, gold, leak, order, orphan, residue, term
from harness.targets import Target
from harness.verdict import Finding

Oracle = Callable[[History, Target], list[Finding]]

ORACLES: dict[str, Oracle] = {
    "TERM": term.check,
    "ORDER": order.check,
    "GOLD": gold.check,
    "DEATH": death.check,
    "BLAST": blast.check,
    "LEAK": leak.check,
    "ORPHAN": orphan.check,
    "RESIDUE": residue.check,
}


def check_all(history: History, target: Target) -> tuple[Finding, ...]:
    """The findings of every oracle, in the order of the table."""
    return tuple(finding for oracle in ORACLES.values() for finding in oracle(history, target))
