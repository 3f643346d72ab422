"""What a client fault may do with the client program; the program lends it (`harness.targets.engine_client`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol


class Caller(Protocol):
    """The hand of one client fault, at its moment in the life of one request."""

    def fired(self) -> None:
        """Note that the deed is done; before it, where nothing can be noted after it."""

    def over(self) -> None:
        """Note that the deed is undone."""

    def cancel(self) -> None:
        """Cancel the task that reads the request's stream."""

    def cancel_outputs(self) -> None:
        """Cancel the engine's own task that hands outputs to the streams."""

    def leave(self, how: Literal["aclose", "break"]) -> None:
        """Let the reader leave its stream at the token that it has: by closing it, or by simply going away."""

    def drop(self) -> None:
        """Let every reader leave its stream open at its next token; then let go the streams and the engine's client."""

    def abort(self) -> None:
        """Ask the engine to abort the request; what comes of it comes through the stream."""

    def abort_ids(self, ids: Sequence[str]) -> None:
        """Ask the engine to abort ids that are of no request."""

    def again(self, like: int) -> None:
        """Once the request is over, use its id at once for another, which asks what request ``like`` asked."""

    def pace(self, seconds: float) -> None:
        """Let the reader wait that long after each token from now on."""

    def block(self, seconds: float) -> None:
        """Hold this thread, and with it the event loop, for that long."""

    def send(self, count: int) -> None:
        """Send ``count`` further requests at once, which ask what this one asks."""

    def poison(self, prompt: Any, params: dict[str, Any], *, same_id: bool = False) -> None:
        """Send a further request, which must be refused; ``same_id``: under the id of this one."""
