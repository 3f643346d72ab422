"""wrong_root: one rank takes another rank for the root of a broadcast or reduce, as after a wrong election."""

from __future__ import annotations

from typing import ClassVar

from harness.faults.collective import CollectiveFault
from harness.faults.hand import Change, Hand
from harness.seam.operations import ROOTED


class WrongRoot(
    CollectiveFault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="wrong_root", tag_field="kind"
):
    """The role issues the collective at ``at`` with ``root``, a rank of the group, instead of the root it asked for.

    Fires only if that is another one. Cannot be undone.
    """

    operations: ClassVar[tuple[str, ...]] = ROOTED
    root: int

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        return super().complaint() or (None if self.root >= 0 else f"root: {self.root}; ranks count from 0")

    def strike(self, hand: Hand) -> None:
        hand.change_collective(Change("root", self.root))

    def __str__(self) -> str:
        return f"issue {self.at} with root {self.root}"
