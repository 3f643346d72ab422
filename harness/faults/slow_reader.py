"""slow_reader: one reader takes its tokens slowly, as a phone on a bad line does; it must not hold up the others."""

from __future__ import annotations

from harness.faults.caller import Caller
from harness.faults.moments import Moment, TokenFault


class SlowReader(TokenFault, frozen=True, forbid_unknown_fields=True, tag="slow_reader", tag_field="kind"):
    """The reader of ``request`` waits ``seconds`` after each token, from the ``after_tokens``-th on."""

    seconds: float = 0.1

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        if not 0 < self.seconds <= 600:
            return f"seconds: {self.seconds} is outside 0..600"
        return None if self.after_tokens >= 1 else f"after_tokens: {self.after_tokens}; the first token is number 1"

    def moment(self, max_tokens: int) -> Moment:
        return Moment("token", self.after_tokens)

    def strike(self, caller: Caller) -> None:
        caller.fired()
        caller.pace(self.seconds)

    def __str__(self) -> str:
        return f"read r{self.request} slowly, {self.seconds:g} s a token, when {self._when()}"
