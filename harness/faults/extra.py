"""extra: one rank issues a collective that nobody else does, as a rank does that takes a fallback path of its own."""

from __future__ import annotations

from harness.faults.collective import CollectiveFault
from harness.faults.hand import Change, Hand


class Extra(CollectiveFault, frozen=True, forbid_unknown_fields=True, tag="extra", tag_field="kind"):
    """Right after the collective at ``at`` the role issues the same once more, with copies of its input and output.

    Nobody waits for it; it meets the others' next one, and so on from then on. Cannot be undone.
    """

    def strike(self, hand: Hand) -> None:
        hand.change_collective(Change("extra"))

    def __str__(self) -> str:
        return f"issue {self.at} twice"
