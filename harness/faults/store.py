"""store: the rendezvous store no longer answers a rank, as when its server hangs or its file system is away.

The calls of the store are sites (``store.set``, ``store.get``, ``store.wait`` and so on), so `delay`, `block`, `raise`
and `kill` can strike there too; this fault is for all calls of one role at once.
"""

from __future__ import annotations

from harness.clock import now
from harness.faults.hand import Hand
from harness.faults.settings import InstantFault, deadline, ends, longest, wrong_time


class Store(InstantFault, frozen=True, forbid_unknown_fields=True, tag="store", tag_field="kind"):
    """From ``at`` on every call of the role to the store stands still before it is made, a call at ``at`` too.

    It answers again ``or_after`` seconds later, or when the run's faults are healed. Fires with the first call.
    """

    or_after: float | None = None

    @property
    def cost(self) -> float:
        return longest(self.or_after)

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        return wrong_time(self.or_after)

    def strike(self, hand: Hand) -> None:
        until = deadline(self.or_after)

        def stand_still() -> None:
            if 0 <= until <= now():
                return
            hand.fired()
            hand.waits(until)
            hand.await_word(until)
            hand.runs()
            hand.over()

        hand.before_store_calls(stand_still)

    def __str__(self) -> str:
        how = ends(None, self.or_after) or "until faults are healed"
        return f"the store does not answer {self.victim} from {self.at} on {how}"
