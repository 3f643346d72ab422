"""drop_client: the last reference to the engine's client goes while requests are under way; nobody shuts it down."""

from __future__ import annotations

from harness.faults.caller import Caller
from harness.faults.moments import Moment, TokenFault


class DropClient(TokenFault, frozen=True, forbid_unknown_fields=True, tag="drop_client", tag_field="kind"):
    """Once ``request`` has ``after_tokens`` tokens, every stream is left open at its next token.

    When all are left, the program lets go the streams and the client and goes on: the engine's processes must end.
    """

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        return None if self.after_tokens >= 1 else f"after_tokens: {self.after_tokens}; a stream is left at a token"

    def moment(self, max_tokens: int) -> Moment:
        return Moment("token", self.after_tokens)

    def strike(self, caller: Caller) -> None:
        caller.drop()

    def __str__(self) -> str:
        return f"drop the client when {self._when()}"
