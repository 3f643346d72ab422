"""Passing a site: count it, record it, show the wait, and do the fault that is armed there.

One `Seam` per process. It is created before the target's code runs and is found through `active()`, since wrapped
library calls have nowhere to carry it. A process in which no seam is active pays one attribute look-up per call.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence

from harness.clock import MS, SECOND, now, sleep_until
from harness.faults import Delay, Fault, Hold, Kill
from harness.instant import Instant
from harness.seam.region import Recorder

__all__ = ["Armed", "Seam", "activate", "active", "deactivate"]


class Armed:
    """One thing to do when this process passes one instant."""

    __slots__ = ("fault", "fired", "index", "instant")

    def __init__(self, index: int, fault: Fault, instant: Instant) -> None:
        self.index, self.fault, self.instant, self.fired = index, fault, instant, False


class Seam:
    """What this process knows of the run: its role, its recorder, and what is armed at which of its sites."""

    def __init__(self, recorder: Recorder, faults: Sequence[Fault], signals: int = -1) -> None:
        self.recorder = recorder
        self.role = recorder.role
        self._signals = signals
        self._passed: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self._armed: defaultdict[tuple[str, str], list[Armed]] = defaultdict(list)
        for index, fault in enumerate(faults):
            instant = fault.until if isinstance(fault, Hold) else getattr(fault, "at", None)
            if instant is not None and instant.role == self.role:
                self._armed[instant.site, instant.side].append(Armed(index, fault, instant))
                if not isinstance(fault, Hold):
                    self._mark("fault.armed", index, str(fault))

    def _mark(self, site: str, number: int, text: str) -> None:
        self.recorder.event(now(), site, "mark", number=number, text=text)

    def before(self, site: str, kind: str = "", number: int = -1, size: int = 0, text: str = "") -> None:
        """This thread is about to make the call; its occurrence is one more than the calls that have succeeded."""
        n = self._passed[site, kind] + 1
        self.recorder.event(now(), site, "before", kind, n, number, size=size, text=text)
        if (site, "before") in self._armed:
            self._fire(site, "before", kind, n, self._passed[site, ""] + 1)

    def after(
        self, site: str, kind: str = "", number: int = -1, size: int = 0, text: str = "", progress: bool = True
    ) -> None:
        """The call has succeeded."""
        with self._lock:
            self._passed[site, kind] += 1
            n = self._passed[site, kind]
            if kind:
                self._passed[site, ""] += 1
            every = self._passed[site, ""]
        if progress:
            self.recorder.progress()
        self.recorder.event(now(), site, "after", kind, n, number, size=size, text=text)
        if (site, "after") in self._armed:
            self._fire(site, "after", kind, n, every)

    def failed(self, site: str, kind: str = "", number: int = -1, error: BaseException | None = None) -> None:
        """The call has raised something that ends it."""
        text = f"{type(error).__name__}: {error}" if error is not None else ""
        self.recorder.event(now(), site, "after", kind, number=number, ok=False, text=text)

    def mark(
        self, site: str, kind: str = "", number: int = -1, value: int = 0, ok: bool = True, text: str = ""
    ) -> None:
        """A note without extent, such as a request that was sent."""
        self.recorder.event(now(), site, "mark", kind, number=number, value=value, ok=ok, text=text)

    def life(self, site: str, value: int = 0) -> None:
        """The process's own start or exit."""
        self.recorder.event(now(), site, "mark", n=1, value=value)
        if (site, "after") in self._armed:
            self._fire(site, "after", "", 1, 1)

    def _fire(self, site: str, side: str, kind: str, n: int, every: int) -> None:
        for armed in self._armed[site, side]:
            instant = armed.instant
            here = every if instant.kind is None else n
            if armed.fired or here != instant.n or instant.kind not in (None, kind):
                continue
            armed.fired = True
            self._act(armed)

    def _act(self, armed: Armed) -> None:
        fault = armed.fault
        if isinstance(fault, Hold):
            self._mark("fault.signal", armed.index, str(armed.instant))
            os.write(self._signals, armed.index.to_bytes(4, "little"))
            return
        self._mark("fault.reached", armed.index, str(armed.instant))
        if isinstance(fault, Kill):
            self._mark("fault.fired", armed.index, str(fault))
            os.kill(os.getpid(), signal.SIGKILL)
        elif isinstance(fault, Delay):
            until = now() + int(fault.seconds * SECOND)
            self._mark("fault.fired", armed.index, str(fault))
            self.recorder.wait(now(), "fault.delay", gives_up=until, text=str(fault), held=True)
            sleep_until(until)
            self.recorder.done()

    def blocks(
        self, site: str, kind: str = "", number: int = -1, timeout_ms: float | None = None, text: str = ""
    ) -> None:
        """This thread blocks at ``site`` from now on; ``timeout_ms`` (milliseconds) is None when it waits for ever."""
        began = now()
        gives_up = -1 if timeout_ms is None else began + int(timeout_ms * MS)
        self.recorder.wait(began, site, kind, number, gives_up, text)

    def runs(self) -> None:
        """This thread blocks no longer."""
        self.recorder.done()


_active: Seam | None = None


def active() -> Seam | None:
    """The seam of this process, or None where none is active."""
    return _active


def activate(seam: Seam) -> None:
    """Makes the seam the one of this process."""
    global _active
    _active = seam


def deactivate() -> None:
    """Makes every wrapped call plain again."""
    global _active
    _active = None
