"""All others are ended first, for as long as that takes, and then the users are told of the death."""

from __future__ import annotations

import multiprocessing
import time

from engine import monitor
from engine.death import Death, settle
from engine.launch import Ranks

LONG = 4.0


def _in_its_own_time(ranks: Ranks) -> Death:
    time.sleep(LONG)
    return settle(ranks)


if multiprocessing.current_process().name == "client":
    monitor.settle = _in_its_own_time  # type: ignore[attr-defined]
