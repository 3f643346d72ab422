"""wrong_shape: one rank comes to a collective with another number of elements, as with one request more."""

from __future__ import annotations

from typing import ClassVar

from harness.faults.collective import CollectiveFault
from harness.faults.hand import Change, Hand
from harness.seam.operations import COLLECTIVES


class WrongShape(CollectiveFault, frozen=True, forbid_unknown_fields=True, tag="wrong_shape", tag_field="kind"):
    """Every tensor of the collective at ``at`` has ``elements`` more in this role, or fewer where that is negative.

    What is added are zeros, and then what the others give goes to nobody; what is taken away is the end. At least one
    is left: where there are not enough it does not fire. Cannot be undone.
    """

    operations: ClassVar[tuple[str, ...]] = tuple(name for name in COLLECTIVES if name != "barrier")
    elements: int = 1

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        return super().complaint() or (None if self.elements else "elements: 0; that changes nothing")

    def strike(self, hand: Hand) -> None:
        hand.change_collective(Change("shape", self.elements))

    def __str__(self) -> str:
        return f"issue {self.at} with {abs(self.elements)} elements {'more' if self.elements > 0 else 'fewer'}"
