"""The settings that client faults have in common, and the moments in the life of a request at which they strike."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from harness.faults.settings import _Fault

Where = Literal["start", "add", "read", "tick", "token"]
"""Where the reader of a request's stream is: ``start``, it has not run at all; ``add``, it waits for the request to be
on its way; ``read``, it waits for a token; ``tick``, the token has come and the reader has not run yet; ``token``, it
has the token and does not wait for the engine.
"""


class Moment(Struct, frozen=True):
    """A moment in the life of a request: where its reader is, after how many tokens.

    A wait that finds its token there already is none: the moment is then in the next wait.
    """

    where: Where
    tokens: int = 0


class ClientFault(_Fault, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Done by the client program itself at a moment of the ``request``-th request of the workload, counted from 0."""

    request: int = 0

    @property
    def victim(self) -> str:
        return "client"

    @property
    def cost(self) -> float:
        """Whatever one client does, the engine waits for no client."""
        return 0.0

    @property
    def requests(self) -> tuple[int, ...]:
        """Every request of the workload that the fault speaks of."""
        return (self.request,)

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        return None


class TokenFault(ClientFault, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """The same once the client has ``after_tokens`` tokens of the request and the request is still under way."""

    after_tokens: int = 1

    def complaint(self) -> str | None:
        return None if self.after_tokens >= 0 else f"after_tokens: {self.after_tokens}; at least 0"

    def moment(self, max_tokens: int) -> Moment:
        """When the fault strikes, for a request of ``max_tokens``."""
        return Moment("read", self.after_tokens)

    def _when(self) -> str:
        return f"r{self.request} has {self.after_tokens} token{'s' * (self.after_tokens != 1)}"
