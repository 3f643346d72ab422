"""close: the client leaves a stream before its end, as a browser tab that is shut leaves it."""

from __future__ import annotations

from typing import Literal

from harness.faults.caller import Caller
from harness.faults.moments import Moment, TokenFault


class Close(TokenFault, frozen=True, forbid_unknown_fields=True, tag="close", tag_field="kind"):
    """The stream of ``request`` is left once it has given ``after_tokens`` tokens.

    ``how`` is ``aclose``, waited for, or ``break``: the loop over the stream is left, and nothing holds the stream.
    """

    how: Literal["aclose", "break"] = "aclose"

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        return None if self.after_tokens >= 1 else f"after_tokens: {self.after_tokens}; a stream is left at a token"

    def moment(self, max_tokens: int) -> Moment:
        return Moment("token", self.after_tokens)

    def strike(self, caller: Caller) -> None:
        caller.fired()
        caller.leave(self.how)

    def __str__(self) -> str:
        return f"close the stream of r{self.request} by {self.how} when {self._when()}"
