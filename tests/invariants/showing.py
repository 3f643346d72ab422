"""What the command prints: a line for each change, a summary, the lists; and the same as objects for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.text import Text

from tests.invariants.judging import Run, Verdict
from tests.invariants.listing import Listed, Mutant
from tests.invariants.statements import STATEMENTS
from tests.invariants.without import WITHOUT

_GOOD = "bold green"
_BAD = "bold red"
_MARGIN = " " * 11


def unchanged_line(run: Run, verdict: Verdict) -> Text:
    """The run without a change."""
    return _line(verdict, "no change", f"{len(run.tests)} runs of tests", run)


def change_line(mutant: Mutant, run: Run, verdict: Verdict, listed: Sequence[Listed]) -> Text:
    """One change: what it broke, what it is, whose tests failed."""
    failed = run.failed()
    of = {name for test in listed if test.node in failed for name in test.invariants}
    red = f"{len(failed)} failed" + (f", of {' '.join(name for name in STATEMENTS if name in of)}" if of else "")
    return _line(verdict, f"{' '.join(mutant.invariants):<4} {mutant.change}", red, run)


def summary_line(verdicts: Sequence[Verdict], gaps: Sequence[str]) -> Text:
    """All of it."""
    good = sum(verdict.good for verdict in verdicts)
    words = f"{good} of {len(verdicts)} changes are noticed by their tests and by no others"
    text = Text(words, style=_GOOD if good == len(verdicts) and not gaps else _BAD)
    for gap in gaps:
        text.append(f"\n{_MARGIN}{gap}", style="default")
    return text


def table(listed: Sequence[Listed], gaps: Sequence[str]) -> Text:
    """Every promise with its tests and their changes, or the reason for which it has none."""
    text = Text()
    for name, statement in STATEMENTS.items():
        text.append(f"{name:<4}", style="bold").append(f" {statement}\n")
        if name in WITHOUT:
            text.append(f"     no counterpart: {WITHOUT[name]}\n")
        for test in listed:
            for marking in test.markings:
                if marking.invariant == name:
                    text.append(f"     {test.node}\n")
                    kin = f"   (kin {' '.join(marking.kin)})" if marking.kin else ""
                    for change in marking.breaks:
                        text.append(f"       {change}{kin}\n")
    for gap in gaps:
        text.append(f"{gap}\n", style=_BAD)
    text.rstrip()
    return text


def table_object(listed: Sequence[Listed], gaps: Sequence[str]) -> dict[str, Any]:
    """The lists."""
    tests: dict[str, list[dict[str, Any]]] = {name: [] for name in STATEMENTS}
    for test in listed:
        for marking in test.markings:
            changes = [msgspec.to_builtins(change) for change in marking.breaks]
            tests.setdefault(marking.invariant, []).append({"test": test.node, "breaks": changes, "kin": marking.kin})
    invariants = {
        name: {"statement": statement, "tests": tests[name], "without": WITHOUT.get(name)}
        for name, statement in STATEMENTS.items()
    }
    return {"invariants": invariants, "gaps": list(gaps)}


def run_object(mutant: Mutant | None, run: Run, verdict: Verdict) -> dict[str, Any]:
    """One run."""
    what: dict[str, Any] = msgspec.to_builtins(mutant) if mutant is not None else {}
    return {
        **what,
        "verdict": verdict.word,
        "faults": list(verdict.faults),
        "served": run.served,
        "failed": {ran.test: ran.why for ran in run.tests if ran.outcome == "failed"},
        "shaky": {ran.test: ran.why for ran in run.shaky()},
        "runs": len(run.tests),
        "seconds": round(run.seconds, 2),
    }


def _line(verdict: Verdict, what: str, result: str, run: Run) -> Text:
    text = Text(f"{verdict.word:<10}", style=_GOOD if verdict.good else _BAD)
    text.append(f" {what}   {result}   {run.seconds:.1f} s", style="default")
    for fault in (*verdict.faults, *(f"{ran.test} failed once, and then no more: {ran.why}" for ran in run.shaky())):
        for line in fault.splitlines():
            text.append(f"\n{_MARGIN}{line}", style="default")
    return text
