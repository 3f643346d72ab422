"""block_loop: a callback that does not return blocks the client's event loop, as a synchronous call does it."""

from __future__ import annotations

from harness.faults.caller import Caller
from harness.faults.moments import TokenFault


class BlockLoop(TokenFault, frozen=True, forbid_unknown_fields=True, tag="block_loop", tag_field="kind"):
    """A callback of the loop sleeps for ``seconds`` while ``request``, with ``after_tokens`` tokens, waits for one.

    Whatever comes meanwhile waits in the client's sockets; afterwards all must be served.
    """

    seconds: float = 0.5

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        return super().complaint() or (
            None if 0 < self.seconds <= 600 else f"seconds: {self.seconds} is outside 0..600"
        )

    def strike(self, caller: Caller) -> None:
        caller.fired()
        caller.block(self.seconds)
        caller.over()

    def __str__(self) -> str:
        return f"block the event loop for {self.seconds:g} s when {self._when()}"
