"""cancel: a task of the client program is cancelled at a chosen await, as a server does it when its caller has gone."""

from __future__ import annotations

import math
from typing import Literal

from harness.faults.caller import Caller
from harness.faults.moments import Moment, TokenFault

At = Literal["start", "add", "read", "tick", "token", "outputs"]

_WORDS: dict[At, str] = {
    "start": "before its first step",
    "add": "while the request is on its way",
    "read": "while it waits for a token",
    "tick": "in the tick in which a token comes",
    "token": "between two tokens",
}


class Cancel(TokenFault, frozen=True, forbid_unknown_fields=True, tag="cancel", tag_field="kind"):
    """The task that reads the stream of ``request`` is cancelled once it has ``after_tokens`` tokens.

    ``during`` is the await: ``start``, before the task has run at all; ``add``, inside the sending, for which the
    prompt travels as rows of embeddings, whose memory has to be waited for; ``read``, while it waits for a token, with
    0 tokens right after the request was sent; ``tick``, in the tick in which the token comes; ``token``, while it
    waits for something else between two tokens, its stream left open. With ``outputs`` the task is instead the
    engine's own, which hands the outputs to all streams: every request must then end with an error.
    """

    after_tokens: int = 0
    during: At = "read"

    @property
    def fatal(self) -> bool:
        """Whether it is the engine's own task, so that no request can be served any more."""
        return self.during == "outputs"

    @property
    def cost(self) -> float:
        return math.inf if self.fatal else 0.0

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        if self.during in ("start", "add") and self.after_tokens:
            return f"after_tokens: {self.after_tokens}; with during = {self.during} there are none yet"
        if self.during == "token" and not self.after_tokens:
            return "after_tokens: 0; with during = token there is at least 1"
        return super().complaint()

    def moment(self, max_tokens: int) -> Moment:
        return Moment("read" if self.during == "outputs" else self.during, self.after_tokens)

    def strike(self, caller: Caller) -> None:
        caller.fired()
        if self.fatal:
            caller.cancel_outputs()
        else:
            caller.cancel()

    def __str__(self) -> str:
        if self.fatal:
            return f"cancel the output task when {self._when()}"
        when = f", when {self._when()}" if self.during in ("read", "tick", "token") else ""
        return f"cancel r{self.request} {_WORDS[self.during]}{when}"
