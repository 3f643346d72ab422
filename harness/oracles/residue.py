"""RESIDUE: a run leaves nothing: no socket file, no store file, no stray process (H8, H11).

Judged where the launcher lived to clean up after itself; a launcher that was killed leaves the directory it was given.
What a stranger has put there before the engine looked has to stay.
"""

from __future__ import annotations

from harness.faults import Stale
from harness.history import History
from harness.oracles import outcome
from harness.seam.operations import STORE
from harness.targets import Target
from harness.verdict import Finding


def check(history: History, target: Target) -> list[Finding]:
    """One finding per thing left behind."""
    if history.ended != "done" or outcome.client_was_killed(history):
        return []
    strangers = _strangers(history, target)
    findings = [Finding("RESIDUE", f"the run left {left} behind") for left in history.residue if left not in strangers]
    if outcome.config_error(history) is not None:
        gone = [left for left in strangers if left not in history.residue]
        findings += [Finding("RESIDUE", f"the engine removed {left}, which was not its own") for left in gone]
    return findings


def _strangers(history: History, target: Target) -> list[str]:
    """What a fault has put into the folder before the engine looked: it is nobody's but the stranger's."""
    plan = history.plan
    return [
        f"{'file' if fault.link == STORE else 'socket'} e/{target.endpoint(fault.link, role, plan)}"
        for fault in outcome.fired(history)
        if isinstance(fault, Stale) and fault.of == "stranger" and fault.early
        for role in target.connectors(fault.link, plan)
    ]
