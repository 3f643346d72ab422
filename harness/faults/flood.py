"""flood: many further requests come at once, more than the engine may hold: the excess is refused, the rest served."""

from __future__ import annotations

from harness.faults.caller import Caller
from harness.faults.moments import TokenFault


class Flood(TokenFault, frozen=True, forbid_unknown_fields=True, tag="flood", tag_field="kind"):
    """``count`` requests that ask what ``request`` asks, in one tick, while it waits with ``after_tokens`` tokens.

    The engine holds ``max_num_seqs`` and ``max_waiting`` of them (settings of a plan's ``engine.config``).
    """

    count: int = 32

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        return super().complaint() or (None if 1 <= self.count <= 1000 else f"count: {self.count} is outside 1..1000")

    def strike(self, caller: Caller) -> None:
        caller.fired()
        caller.send(self.count)

    def __str__(self) -> str:
        return f"flood with {self.count} requests when {self._when()}"
