"""ORPHAN: when the program that started the engine has ended, everything it started ends by itself (H3; I41, I42)."""

from __future__ import annotations

from harness.history import History
from harness.targets import Target
from harness.verdict import Finding


def check(history: History, target: Target) -> list[Finding]:
    """One finding per process that only the clean-up ended, in a run whose client program had ended."""
    if history.ended != "done":
        return []
    return [
        Finding("ORPHAN", f"{process.role} was still running after the client program had ended", process.role)
        for process in history.processes
        if process.ended_by == "cleanup"
    ]
