"""The settings that faults have in common, and what follows from them: one record for each of the three families."""

from __future__ import annotations

import math
import resource
from typing import ClassVar

from msgspec import Struct

from harness.clock import SECOND, now
from harness.faults.hand import Hand
from harness.instant import Instant


class _Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """A run whose fault did not fire is vacuous, unless the fault is ``optional``."""

    optional: bool = False

    @property
    def cost(self) -> float:
        """The seconds that the fault can take from the engine at most; infinite where something is ended or lost."""
        return math.inf


class InstantFault(_Fault, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Done by a process to itself when it passes ``at``."""

    at: Instant

    @property
    def victim(self) -> str:
        return self.at.role


class SignalFault(InstantFault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """A signal to the role that passes ``at``, or to another one, ``to``.

    A role gives it to itself, so that its instant is exact. For another one the lane gives it, and the thread that
    passes ``at`` waits there until that is done: nothing that it does later comes before the deed.
    """

    to: str | None = None

    @property
    def victim(self) -> str:
        return self.to or self.at.role

    @property
    def remote(self) -> bool:
        """Whether the deed is the lane's."""
        return self.to is not None and self.to != self.at.role

    def ask_lane(self, hand: Hand) -> None:
        """The part of the role that passes ``at`` in a deed of the lane."""
        hand.fired()
        hand.waits()
        hand.tell_lane()
        hand.await_word()
        hand.runs()

    def _whom(self) -> str:
        return f"{self.victim} at {self.at}"


class LimitFault(InstantFault, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """A limit of the kernel that is lowered for one process; the lane raises it again."""

    limit: ClassVar[int]
    """Which; a number of the module `resource`."""

    def lower(self, to: int) -> None:
        """Make ``to`` this process's limit."""
        _, hard = resource.getrlimit(self.limit)
        resource.setrlimit(self.limit, (to, hard))

    def restore(self, pid: int) -> None:
        """Make this process's limit, which the other one was born with, that of another process again."""
        resource.prlimit(pid, self.limit, resource.getrlimit(self.limit))


# What lasts until an instant, for a time, or until it is healed: the same words in every family.


def longest(or_after: float | None) -> float:
    """The seconds that it lasts at most; infinite where no time ends it."""
    return math.inf if or_after is None else or_after


def wrong_time(or_after: float | None) -> str | None:
    """What is wrong with the seconds after which it ends, as 'field: sentence', or None."""
    if or_after is not None and not 0 < or_after <= 600:
        return f"or_after: {or_after} is outside 0..600 seconds"
    return None


def deadline(or_after: float | None) -> int:
    """When it ends if it begins now (nanoseconds); -1 where no time ends it."""
    return -1 if or_after is None else now() + int(or_after * SECOND)


def ends(until: Instant | None, or_after: float | None) -> str:
    """What ends it, as the end of a sentence; empty where only healing does."""
    said = [f"until {until}"] if until else []
    said += [f"for {or_after:g} s"] if or_after is not None else []
    return " or ".join(said)
