"""The processes of a group or session, so that nothing of a run or of a whole baseline is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from harness.clock import pause

GLANCE = 0.02
"""Seconds between two looks."""


def living(leader: int) -> list[int]:
    """The process ids of the group or session that was begun by that process; zombies do not count."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _is_of(entry, leader)]


def end(leader: int) -> None:
    """Kills the group or session, and returns when it is gone."""
    while members := living(leader):
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        pause(GLANCE)


def _is_of(entry: Path, leader: int) -> bool:
    try:
        stat = (entry / "stat").read_text()
    except OSError:
        return False
    state, _, group, session, *_ = stat.rpartition(")")[2].split()
    return state not in "ZX" and leader in (int(group), int(session))
