"""The step watchdog: from outside, whether the engine gets on with what it owes.

Every rank bounds its own steps, but a rank that is stuck where its own code cannot look (a native call, a lost core, a
signal that stops it) cannot: with one rank nobody else would notice. The watchdog is armed only while something is
owed, so that an idle engine needs no timer and survives a pause of any length.
"""

from __future__ import annotations

from collections.abc import Callable, Sized

from engine import health
from engine.clock import Deadline, now
from engine.errors import EngineDeadError
from engine.health import Traffic
from engine.pulse import LinkReading, PulseTable, Reading

MARGIN = 0.5
"""Seconds after the step deadline: the ranks know better whom they wait for, and a machine that was frozen as a whole
gets this long to go on before it is judged."""


class Watchdog:
    """Watches an engine through its pulse table, for the client of that index.

    `limit` is the step deadline in seconds, None for no watch at all; `owed` holds whatever the client waits for.
    """

    def __init__(
        self,
        limit: float | None,
        pulses: PulseTable,
        traffic: Traffic,
        owed: Sized,
        pids: list[int],
        client_index: int = 0,
    ) -> None:
        self.asleep = False
        """Whether the last deadline given was never: then whoever sends something has to wake the thread that waits."""
        self.suspect_output: Callable[[int], None] | None = None
        """Called with the number of an output message that was sent and has not arrived, to find out where it is."""
        self._limit = limit
        self._pulses = pulses
        self._traffic = traffic
        self._owed = owed
        self._pids = pids
        self._client = client_index
        self._before: tuple[float, int] | None = None

    @property
    def sent(self) -> int:
        """The number of the last message that the client has sent."""
        return self._traffic.sent

    def deadline(self) -> Deadline:
        """When to look again; never while nothing is owed."""
        if self._limit is None:
            return Deadline.never()
        if self._before is not None:
            return Deadline.after(MARGIN)
        # Before the look: what is sent after it finds the flag and wakes the thread.
        self.asleep = True
        since = self._since(*self._look())
        if since is None:
            return Deadline.never()
        self.asleep = False
        return Deadline(since + self._limit)

    def bark(self) -> EngineDeadError | None:
        """The engine's death if nothing has moved for the limit, seen twice with :data:`MARGIN` between; else None."""
        readings, link = self._look()
        since = self._since(readings, link)
        if self._limit is None or since is None or now() < since + self._limit:
            self._before = None
            return None
        state = (now(), sum(reading.beats for reading in readings))
        if self._before is None or self._before[1] != state[1]:
            self._before = state
            return None
        if state[0] < self._before[0] + MARGIN:
            return None
        self._before = None
        if health.stalled_since(readings, link, self._traffic) is None:
            if self.suspect_output is not None:
                self.suspect_output(link.sent)
            return None
        culprit, cause = health.describe(readings, link, self._traffic, self._pids)
        return EngineDeadError(culprit, f"{cause} (watchdog: no progress for {now() - since:.1f} s)")

    def _look(self) -> tuple[list[Reading], LinkReading]:
        return self._pulses.read(), self._pulses.link(self._client)

    def _since(self, readings: list[Reading], link: LinkReading) -> float | None:
        if not self._owed:
            return None
        since = health.stalled_since(readings, link, self._traffic)
        if since is None and self._traffic.received < link.sent:
            return max(self._traffic.at, readings[0].at)
        return since
