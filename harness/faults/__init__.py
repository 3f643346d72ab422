"""Faults: one small file each, its settings apart from its state, and what it does.

A fault is either done by a process to itself at an instant of its own (`AtInstant`: it has ``at`` and `strike`), or
done to whole frames by the proxy of a link (`OnFrames`: it has ``link``, ``frame``, ``victim`` and `rule`). Both have
``victim``, ``optional``, ``complaint()`` and ``cost``: the seconds that the fault can take from the engine at most,
infinite where something is ended or lost. Nothing else in the harness looks inside a fault's settings to do it.
"""

from __future__ import annotations

from typing import TypeAlias, get_args

from harness.faults.corrupt import Corrupt
from harness.faults.delay import Delay
from harness.faults.drop import Drop
from harness.faults.duplicate import Duplicate
from harness.faults.foreign import Foreign
from harness.faults.hold import Hold
from harness.faults.kill import Kill
from harness.faults.raise_ import InjectedError, Raise
from harness.faults.reset import Reset
from harness.faults.squat import Squat
from harness.faults.stop import Stop
from harness.faults.terminate import Terminate

AtInstant: TypeAlias = Delay | Kill | Stop | Raise | Terminate | Squat
OnFrames: TypeAlias = Drop | Hold | Reset | Corrupt | Duplicate | Foreign
OnMessages: TypeAlias = Corrupt | Duplicate | Foreign
"""Those of `OnFrames` that need a message and can do nothing to a command such as SUBSCRIBE."""

Fault: TypeAlias = AtInstant | OnFrames

KINDS: tuple[str, ...] = tuple(str(kind.__struct_config__.tag) for kind in get_args(Fault))
"""Every kind that a plan can name."""

DRAWN: tuple[str, ...] = ("delay", "kill", "drop", "hold", "stop")
"""The kinds that hunts draw: after each of them it is known what a sound engine has to do."""


def kind_of(fault: Fault) -> str:
    """The fault's kind as plans write it."""
    return str(type(fault).__struct_config__.tag)


def roles_named(fault: Fault) -> tuple[str, ...]:
    """Every role that a fault speaks of, the victim first."""
    until = fault.until if isinstance(fault, Hold) else None
    also = fault.also if isinstance(fault, Stop) else ()
    return (fault.victim, *also, *((until.role,) if until is not None else ()))


__all__ = [
    "DRAWN",
    "KINDS",
    "AtInstant",
    "Corrupt",
    "Delay",
    "Drop",
    "Duplicate",
    "Fault",
    "Foreign",
    "Hold",
    "InjectedError",
    "Kill",
    "OnFrames",
    "OnMessages",
    "Raise",
    "Reset",
    "Squat",
    "Stop",
    "Terminate",
    "kind_of",
    "roles_named",
]
