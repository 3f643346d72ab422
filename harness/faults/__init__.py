"""Faults: one small file each, its settings apart from its state, and what it does.

A fault is either done by a process to itself at an instant of its own (`AtInstant`: it has ``at`` and `strike`), or
done to whole frames by the proxy of a link (`OnFrames`: it has ``link``, ``frame``, ``victim`` and `rule`), or done by
the client program at a moment of a request (`OnClient`: it has ``request``, `moment` and `strike`). All have
``victim``, ``optional``, ``complaint()`` and ``cost``: the seconds that the fault can take from the engine at most,
infinite where something is ended or lost. Nothing else in the harness looks inside a fault's settings to do it.
"""

from __future__ import annotations

from typing import TypeAlias, get_args

from harness.faults.abort_race import AbortRace
from harness.faults.block import Block
from harness.faults.block_loop import BlockLoop
from harness.faults.cancel import Cancel
from harness.faults.clock import Clock
from harness.faults.close import Close
from harness.faults.corrupt import Corrupt
from harness.faults.delay import Delay
from harness.faults.descriptors import Descriptors
from harness.faults.drop import Drop
from harness.faults.drop_client import DropClient
from harness.faults.duplicate import Duplicate
from harness.faults.exit import Exit
from harness.faults.extra import Extra
from harness.faults.flood import Flood
from harness.faults.foreign import Foreign
from harness.faults.frames import LastingFault
from harness.faults.full_disk import FullDisk
from harness.faults.high_water import HighWater
from harness.faults.hold import Hold
from harness.faults.kill import Kill
from harness.faults.lag import Lag
from harness.faults.linger import Linger
from harness.faults.long_path import LongPath
from harness.faults.memory import Memory
from harness.faults.poison import Poison
from harness.faults.raise_ import InjectedError, Raise
from harness.faults.refuse import Refuse
from harness.faults.reorder import Reorder
from harness.faults.reset import Reset
from harness.faults.restart import AGAIN, Restart
from harness.faults.skip import Skip
from harness.faults.slow import Slow
from harness.faults.slow_reader import SlowReader
from harness.faults.squat import Squat
from harness.faults.stale import Stale
from harness.faults.stall import Stall
from harness.faults.stop import Stop
from harness.faults.store import Store
from harness.faults.swap import Swap
from harness.faults.terminate import Terminate
from harness.faults.truncate import Truncate
from harness.faults.unlink import Unlink
from harness.faults.wrong_root import WrongRoot
from harness.faults.wrong_shape import WrongShape
from harness.instant import Instant

OnCollectives: TypeAlias = Skip | Extra | Swap | WrongRoot | WrongShape
"""Those of `AtInstant` that change one collective of one rank."""

OnFiles: TypeAlias = Squat | Stale | Unlink | LongPath | FullDisk
"""Those of `AtInstant` that take from the engine a file or an address of its folder."""

AtInstant: TypeAlias = (
    Delay
    | Block
    | Kill
    | Restart
    | Exit
    | Terminate
    | Stop
    | Raise
    | Clock
    | Descriptors
    | Memory
    | OnCollectives
    | Store
    | HighWater
    | Linger
    | OnFiles
)
OnFrames: TypeAlias = (
    Drop | Hold | Lag | Reorder | Stall | Slow | Refuse | Reset | Corrupt | Truncate | Duplicate | Foreign
)
OnMessages: TypeAlias = Corrupt | Truncate | Duplicate | Foreign
"""Those of `OnFrames` that need a message and can do nothing to a command such as SUBSCRIBE."""

OnClient: TypeAlias = Cancel | Close | DropClient | SlowReader | BlockLoop | Flood | Poison | AbortRace

Fault: TypeAlias = AtInstant | OnFrames | OnClient

KINDS: tuple[str, ...] = tuple(str(kind.__struct_config__.tag) for kind in get_args(Fault))
"""Every kind that a plan can name."""

DRAWN: tuple[str, ...] = (
    "delay",
    "kill",
    "drop",
    "hold",
    "stop",
    "cancel",
    "close",
    "abort_race",
    "slow_reader",
    "drop_client",
    "raise",
    "exit",
    "terminate",
    "restart",
    "block",
    "skip",
    "extra",
    "swap",
    "wrong_shape",
    "lag",
    "reorder",
    "reset",
    "stall",
    "duplicate",
    "corrupt",
    "truncate",
    "foreign",
    "flood",
    "poison",
    "block_loop",
)
"""The kinds that hunts draw: after each of them it is known what a sound engine has to do."""


def kind_of(fault: Fault) -> str:
    """The fault's kind as plans write it."""
    return str(type(fault).__struct_config__.tag)


def roles_named(fault: Fault) -> tuple[str, ...]:
    """Every role that a fault speaks of, the victim first."""
    also = fault.also if isinstance(fault, Stop) else ()
    return tuple(dict.fromkeys([fault.victim, *also, *(instant.role for instant, _ in instants_of(fault))]))


def instants_of(fault: Fault) -> tuple[tuple[Instant, bool], ...]:
    """The instants of a fault, each with whether it ends the fault; one that does not begins it."""
    found = ((getattr(fault, "at", None), False), (getattr(fault, "until", None), True))
    return tuple((instant, ends) for instant, ends in found if isinstance(instant, Instant))


__all__ = [
    "AGAIN",
    "DRAWN",
    "KINDS",
    "AbortRace",
    "AtInstant",
    "Block",
    "BlockLoop",
    "Cancel",
    "Clock",
    "Close",
    "Corrupt",
    "Delay",
    "Descriptors",
    "Drop",
    "DropClient",
    "Duplicate",
    "Exit",
    "Extra",
    "Fault",
    "Flood",
    "Foreign",
    "FullDisk",
    "HighWater",
    "Hold",
    "InjectedError",
    "Kill",
    "Lag",
    "LastingFault",
    "Linger",
    "LongPath",
    "Memory",
    "OnClient",
    "OnCollectives",
    "OnFiles",
    "OnFrames",
    "OnMessages",
    "Poison",
    "Raise",
    "Refuse",
    "Reorder",
    "Reset",
    "Restart",
    "Skip",
    "Slow",
    "SlowReader",
    "Squat",
    "Stale",
    "Stall",
    "Stop",
    "Store",
    "Swap",
    "Terminate",
    "Truncate",
    "Unlink",
    "WrongRoot",
    "WrongShape",
    "instants_of",
    "kind_of",
    "roles_named",
]
