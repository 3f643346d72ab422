"""skip: one rank leaves a collective out, as a rank does that returns early or decides by its own state.

Gloo matches collectives by their order alone: from then on each of this rank's meets the one before it of the others.
"""

from __future__ import annotations

from harness.faults.collective import CollectiveFault
from harness.faults.hand import Change, Hand


class Skip(CollectiveFault, frozen=True, forbid_unknown_fields=True, tag="skip", tag_field="kind"):
    """The collective at ``at`` is not issued: the role goes on with its own input, as if it were alone in the group.

    In an all-gather its own part stands for everybody's. Cannot be undone.
    """

    def strike(self, hand: Hand) -> None:
        hand.change_collective(Change("skip"))

    def __str__(self) -> str:
        return f"skip {self.at}"
