"""RESIDUE: a run leaves nothing: no socket file, no store file, no stray process (H8, H11).

Judged where the launcher lived to clean up after itself; a launcher that was killed leaves the directory it was given.
"""

from __future__ import annotations

from harness.history import History
from harness.oracles import outcome
from harness.targets import Target
from harness.verdict import Finding


def check(history: History, target: Target) -> list[Finding]:
    """One finding per thing left behind."""
    if history.ended != "done" or outcome.client_was_killed(history):
        return []
    return [Finding("RESIDUE", f"the run left {left} behind") for left in history.residue]
