"""abort_race: an abort comes just around an add, a token, a finish, or the next use of the same id."""

from __future__ import annotations

from typing import Literal

from harness.faults.caller import Caller
from harness.faults.moments import ClientFault, Moment

When = Literal["before_add", "after_add", "first_token", "last_token", "finish", "stranger"]

_WORDS: dict[When, str] = {
    "before_add": "just before it is sent",
    "after_add": "just after it was sent",
    "first_token": "at its first token",
    "last_token": "at its last token but one",
    "finish": "at its end",
}

_STRANGERS = ("", "r", "r0", "#", "r0#", "*")
"""Ids of nobody: empty, and the beginnings of some. An abort must not take them for patterns."""


class AbortRace(ClientFault, frozen=True, forbid_unknown_fields=True, tag="abort_race", tag_field="kind"):
    """The abort of ``request`` is sent at ``when``.

    ``before_add``, of an id that is not known yet: the request must be served all the same. ``after_add``, in the tick
    after it was sent. ``first_token``. ``last_token``: with all tokens but one, so that the abort crosses the finish.
    ``finish``: of what has ended. ``stranger``: after the add, but of ids that are nobody's, which must end nothing.

    With ``reuse`` the stream is closed right after the abort, and its id used again at once, for what that request of
    the workload asks; it must get its own tokens and no others.
    """

    when: When = "after_add"
    reuse: int | None = None

    @property
    def requests(self) -> tuple[int, ...]:
        return (self.request,) if self.reuse is None else (self.request, self.reuse)

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        if self.reuse is not None and self.when in ("before_add", "stranger"):
            return f"reuse: {self.reuse}; with when = {self.when} the request goes on, so its id is not free"
        return None

    def moment(self, max_tokens: int) -> Moment:
        """When the fault strikes, for a request of ``max_tokens``."""
        if self.when == "before_add":
            return Moment("start")
        if self.when in ("after_add", "stranger"):
            return Moment("read")
        tokens = {"first_token": 1, "last_token": max_tokens - 1}.get(self.when, max_tokens)
        return Moment("token", tokens) if tokens else Moment("read")

    def strike(self, caller: Caller) -> None:
        caller.fired()
        if self.when == "stranger":
            caller.abort_ids(_STRANGERS)
            return
        caller.abort()
        if self.reuse is None:
            return
        caller.again(self.reuse)
        if self.when == "after_add":
            caller.cancel()
        else:
            caller.leave("aclose")

    def __str__(self) -> str:
        if self.when == "stranger":
            return f"abort ids of nobody just after r{self.request} was sent"
        then = f", and use its id again as r{self.reuse}" if self.reuse is not None else ""
        return f"abort r{self.request} {_WORDS[self.when]}{then}"
