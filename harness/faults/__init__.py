"""Faults: one small file each, its settings apart from its state.

A fault is either done by a process to itself at an instant of its own (`AT_INSTANT`: it has ``at``), or done to whole
frames by the proxy of a link (`ON_FRAMES`: it has ``link``, ``frame`` and ``victim``). Nothing else in the harness
looks inside a fault's settings.
"""

from __future__ import annotations

from typing import TypeAlias

from harness.faults.delay import Delay
from harness.faults.drop import Drop
from harness.faults.hold import Hold
from harness.faults.kill import Kill

Fault: TypeAlias = Delay | Kill | Drop | Hold

AT_INSTANT = (Delay, Kill)
ON_FRAMES = (Drop, Hold)
KINDS: tuple[str, ...] = ("delay", "kill", "drop", "hold")


def kind_of(fault: Fault) -> str:
    """The fault's kind as plans write it."""
    return str(type(fault).__struct_config__.tag)


__all__ = ["AT_INSTANT", "KINDS", "ON_FRAMES", "Delay", "Drop", "Fault", "Hold", "Kill", "kind_of"]
