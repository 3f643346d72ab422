"""The settings that faults have in common, and what follows from them: one record for each of the three families."""

from __future__ import annotations

import math
import resource
from typing import ClassVar

from msgspec import Struct

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
