"""swap: one rank issues two collectives in the other order, as a rank does that walks a set or an unordered queue.

Where both have the same shape gloo mixes the data silently: every rank goes on with sums of unlike things.
"""

from __future__ import annotations

from harness.faults.collective import CollectiveFault
from harness.faults.hand import Change, Hand


class Swap(CollectiveFault, frozen=True, forbid_unknown_fields=True, tag="swap", tag_field="kind"):
    """The collective at ``at`` is issued only behind the next one of the role's group.

    Until then the role goes on with its own input, as after `skip`, for the code that asked for the first has to have
    an answer before it asks for the second; what then comes of the first goes to nobody. Where none follows, it is
    never issued. Cannot be undone.
    """

    def strike(self, hand: Hand) -> None:
        hand.change_collective(Change("swap"))

    def __str__(self) -> str:
        return f"issue {self.at} behind the next"
