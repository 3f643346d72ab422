"""Threads and process exit at the seam: which thread has which name, and how the process left."""

from __future__ import annotations

import functools
import os
import threading
from typing import Any

from harness.seam import site as seams


def _start(original: Any) -> Any:
    @functools.wraps(original)
    def call(self: threading.Thread) -> None:
        original(self)
        seam = seams.active()
        if seam is not None:
            seam.mark("thread", value=self.native_id or 0, text=self.name)

    call.__nowedge_original__ = original  # type: ignore[attr-defined]
    return call


def _exit(original: Any) -> Any:
    @functools.wraps(original)
    def call(status: int) -> None:
        seam = seams.active()
        if seam is not None:
            seam.life("exit", value=status)
        original(status)

    call.__nowedge_original__ = original  # type: ignore[attr-defined]
    return call


def install() -> None:
    """Patches thread start and ``os._exit``, once per process; dormant until a seam is active."""
    if not hasattr(threading.Thread.start, "__nowedge_original__"):
        setattr(threading.Thread, "start", _start(threading.Thread.start))  # noqa: B010
    if not hasattr(os._exit, "__nowedge_original__"):
        setattr(os, "_exit", _exit(os._exit))  # noqa: B010
