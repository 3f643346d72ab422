"""Which errors are the person's to mend, and where the traceback of any other goes."""

from __future__ import annotations

import tempfile
import traceback
from pathlib import Path

from harness.bench import BenchError
from harness.durations import DurationError
from harness.faults.catalogue import FaultTextError
from harness.folder import DEFAULT, FolderError
from harness.history import HistoryError
from harness.instant import InstantError
from harness.plan import PlanError
from harness.replay import ReplayError
from harness.script import ScriptError

USER_ERRORS = (
    BenchError,
    DurationError,
    FaultTextError,
    FolderError,
    HistoryError,
    InstantError,
    PlanError,
    ReplayError,
    ScriptError,
)
"""Each says in one sentence what is wrong with what was asked."""


def write_traceback(error: BaseException) -> Path:
    """Writes the traceback of an error to a file, in the folder of findings if that can be written."""
    text = "".join(traceback.format_exception(error))
    for folder in (DEFAULT, Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", dir=folder, prefix="traceback-", suffix=".txt", delete=False
            ) as file:
                file.write(text)
            return Path(file.name)
        except OSError:
            continue
    return Path("nowhere: no folder could be written")
