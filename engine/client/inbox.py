"""Outputs that wait for a reader, and readers that wait for outputs: one for an event loop, one for threads.

Both are closed by the engine's death: what had come before is still handed out, then every reader, whether it waits
already or comes later, gets the one latched error.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from engine.clock import Deadline
from engine.messages import Outputs
from engine.monitor import DeathLatch


class LoopInbox:
    """Belongs to one event loop."""

    def __init__(self, latch: DeathLatch) -> None:
        self._latch = latch
        self._outputs: deque[Outputs] = deque()
        self._readers: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def put(self, outputs: Outputs) -> None:
        self._outputs.append(outputs)
        self._wake_one()

    def close(self) -> None:
        """No more outputs will come."""
        self._closed = True
        while self._readers:
            self._wake_one()

    async def get(self) -> Outputs:
        """The next outputs. Raises the latched error once nothing is left."""
        while not self._outputs:
            if self._closed:
                self._latch.check()
            reader = asyncio.get_running_loop().create_future()
            self._readers.append(reader)
            try:
                await reader
            except asyncio.CancelledError:
                if reader in self._readers:
                    self._readers.remove(reader)
                elif self._outputs:
                    self._wake_one()  # the wake-up was this reader's; somebody else must have it
                raise
        return self._outputs.popleft()

    def _wake_one(self) -> None:
        while self._readers:
            reader = self._readers.popleft()
            if not reader.done():
                reader.set_result(None)
                return


class ThreadInbox:
    """Filled by one thread, read by any."""

    def __init__(self, latch: DeathLatch) -> None:
        self._latch = latch
        self._outputs: deque[Outputs] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, outputs: Outputs) -> None:
        with self._changed:
            self._outputs.append(outputs)
            self._changed.notify()

    def close(self) -> None:
        """No more outputs will come."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def get(self, deadline: Deadline) -> Outputs:
        """The next outputs. Raises the latched error once nothing is left, TimeoutError at the deadline."""
        with self._changed:
            while not self._outputs:
                if self._closed:
                    self._latch.check()
                if deadline.expired():
                    raise TimeoutError("no output came in time")
                self._changed.wait(deadline.remaining())
            return self._outputs.popleft()

    def disown(self) -> None:
        """In a forked child: nothing will ever come, and another thread may have held the lock."""
        self._changed = threading.Condition()
        self._outputs = deque()
        self._closed = True
