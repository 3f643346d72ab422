"""The folder of one run, as its plan's faults want it before anything is started in it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from harness.faults import FullDisk
from harness.plan import Plan, PlanError
from harness.seam import disk


@contextlib.contextmanager
def run_folder(run: Path, plan: Plan) -> Iterator[None]:
    """Makes what the engine's folder is to lie in; on a small file system of its own if that is to be full at times.

    Raises PlanError where this process may not make one. The clean-up of the run removes the folder.
    """
    top = run / "e"
    held = -1
    if any(isinstance(fault, FullDisk) for fault in plan.faults):
        try:
            held = disk.small_disk(top)
        except disk.DiskError as error:
            run.rmdir()
            raise PlanError(f"faults: {error}") from None
    else:
        top.mkdir(mode=0o700)
    try:
        yield
    finally:
        if held >= 0:
            os.close(held)
