"""Noticing that the machine itself stood still, so that its pauses are not held against the engine.

A virtual machine is sometimes paused for seconds, and an overloaded one runs nobody for a while. An engine with wall-
clock deadlines may then rightly give up. A thread that wants to run every 50 ms notices: what it oversleeps by more
than a quarter of a second is a stall, and counts like a delay that the plan itself had asked for. On a crowded machine
that thread may run in time and the engine may not: so what each process of a run had to wait for a core counts too,
once it is more than that. Processes wait for each other, so that such waits add up.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from harness.clock import MS, SECOND, now

BEAT = 50 * MS
LATE = 250 * MS
_KEPT = 1000


class Heartbeat:
    """One thread that measures how late it runs."""

    def __init__(self) -> None:
        self._stalls: deque[tuple[int, int]] = deque(maxlen=_KEPT)
        self._stop = threading.Event()
        self._last = now()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._stop.wait(BEAT / SECOND):
            self._notice()

    def _notice(self) -> None:
        last, self._last = self._last, now()
        if self._last - last > LATE:
            self._stalls.append((last, self._last))

    def stalled(self, began: int, ended: int) -> float:
        """Seconds between two times (nanoseconds) for which nothing ran, the stall that may go on just now included."""
        stalls = [*self._stalls]
        if now() - self._last > LATE:
            stalls.append((self._last, now()))
        return sum(max(0, min(end, ended) - max(start, began)) for start, end in stalls) / SECOND

    def stop(self) -> None:
        """Ends the thread."""
        self._stop.set()
        self._thread.join()


def starved(processes: Iterable[float]) -> float:
    """Seconds that a crowded machine took from a run, from what each of its processes waited for a core."""
    return sum(seconds for seconds in processes if seconds > LATE / SECOND)
