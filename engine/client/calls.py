"""Utility calls that wait for their reply.

A call is entered before it is sent, so no reply can come too early, and leaves the table with its reply, its caller's
patience or the engine's death, whichever comes first. A reply to no entry (late, repeated, unknown) is dropped: it
concerns nobody.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import secrets
import threading
from typing import Any

from engine.errors import EngineDeadError, UtilityError
from engine.messages import UtilityOutput

Reply = asyncio.Future[Any] | concurrent.futures.Future[Any]

_IDS = 2**64


class Calls:
    """The table of one client: call id to method and future. Futures of one kind, settled by their own thread."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[str, Reply]] = {}
        # Reentrant: a collection of garbage, and in it the client's finalizer, may come at any moment.
        self._lock = threading.RLock()
        # Begun anywhere, so that a reply to another client's or another run's call is a stranger here.
        self._ids = itertools.count(secrets.randbits(64))

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, method: str, future: Reply) -> int:
        """A call of `method` is about to be sent: its id, unsigned, 64 bits, used by no other call of this client."""
        with self._lock:
            call_id = next(self._ids) % _IDS
            self._open[call_id] = (method, future)
        return call_id

    def leave(self, call_id: int) -> None:
        """Nobody waits for that reply any more. Harmless for a call that has been settled."""
        with self._lock:
            self._open.pop(call_id, None)

    def settle(self, reply: UtilityOutput) -> bool:
        """Give the reply to whom it belongs; False if nobody waits for it."""
        with self._lock:
            method, future = self._open.pop(reply.call_id, ("", None))
        if future is None or future.done():
            return False
        if reply.failure is not None:
            future.set_exception(UtilityError(method, reply.failure))
        else:
            future.set_result(reply.result)
        return True

    def fail(self, error: EngineDeadError) -> None:
        """The engine is dead: nobody gets a reply any more."""
        with self._lock:
            waiting, self._open = self._open, {}
        for _, future in waiting.values():
            if not future.done():
                future.set_exception(error)

    def disown(self) -> None:
        """In a forked child: the calls are the parent's."""
        self._lock = threading.RLock()
        self._open = {}
