"""Passing a site: count it, record it, show the wait, and do the fault that is armed there.

One `Seam` per process. It is created before the target's code runs and is found through `active()`, since wrapped
library calls have nowhere to carry it. A process in which no seam is active pays one attribute look-up per call.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec import Struct

from harness.clock import MS, now
from harness.faults import AtInstant, Descriptors, Fault, Raise, instants_of, kind_of
from harness.faults.collective import CollectiveFault
from harness.faults.hand import Change
from harness.instant import Instant
from harness.seam.disk import Disk
from harness.seam.flags import Flags
from harness.seam.region import Recorder, Track

__all__ = ["Armed", "Hand", "Outlets", "Seam", "activate", "active", "deactivate", "waiting"]


class Outlets(Struct, frozen=True):
    """How a process reaches what is outside of its seam.

    ``signals``: the proxy, told that a hold may end; ``calls``: the lane, told that a fault needs it (descriptors, -1
    for none). ``flags``: what threads of the run wait for. ``disk``: the engine's folder. ``squat`` binds a link's
    addresses again, and says whether there were any. ``change`` changes the collective at hand, ``adjust`` the sockets
    of a link, both with what to call when it is done; ``before_store`` is given what to do before a call to the store.
    """

    signals: int = -1
    calls: int = -1
    flags: Flags | None = None
    squat: Callable[[str], bool] = lambda link: False
    change: Callable[[Change, Callable[[], None]], None] = lambda change, done: None
    adjust: Callable[[str, str, int, Callable[[], None]], None] = lambda link, option, value, done: None
    before_store: Callable[[Callable[[], None]], None] = lambda deed: None
    disk: Disk | None = None


class Armed:
    """One thing to do when this process passes one instant."""

    __slots__ = ("ends", "fault", "fired", "index", "instant")

    def __init__(self, index: int, fault: Fault, instant: Instant, *, ends: bool) -> None:
        self.index, self.fault, self.instant, self.fired = index, fault, instant, False
        self.ends = ends
        """Whether the instant ends the fault; else it begins it."""


class Seam:
    """What this process knows of the run: its role, its recorder, and what is armed at which of its sites."""

    def __init__(self, recorder: Recorder, faults: Sequence[Fault], outlets: Outlets | None = None) -> None:
        self.recorder = recorder
        self.role = recorder.role
        self.outlets = outlets or Outlets()
        self._tracks: dict[tuple[str, str], Track] = {}
        self._armed: defaultdict[tuple[str, str], list[Armed]] = defaultdict(list)
        for index, fault in enumerate(faults):
            for instant, ends in instants_of(fault):
                if instant.role == self.role:
                    self._armed[instant.site, instant.side].append(Armed(index, fault, instant, ends=ends))
                    if not ends:
                        self.note("fault.armed", index, str(fault))
        self.changes_collectives = any(
            isinstance(armed.fault, CollectiveFault) for together in self._armed.values() for armed in together
        )
        """Whether some fault that is armed here changes a collective that is about to be issued."""
        self._sites = {site for site, _ in self._armed}
        """The sites at which something is armed; at those, passings of all kinds together are counted too."""
        for together in self._armed.values():
            # What leaves comes behind the others, and before it what takes from them what they need.
            together.sort(key=lambda armed: (isinstance(armed.fault, Raise), isinstance(armed.fault, Descriptors)))

    def note(self, site: str, number: int, text: str) -> None:
        """A mark about a fault of the plan."""
        self.recorder.event(now(), site, "mark", number=number, text=text)

    def track(self, site: str, kind: str = "") -> Track:
        """What records that site for frames of that kind."""
        key = site, kind
        return self._tracks.get(key) or self._tracks.setdefault(key, self.recorder.track(site, kind))

    def is_armed(self, site: str) -> bool:
        """Whether anything is to be done when this process passes the site."""
        return site in self._sites

    def before(self, site: str, kind: str = "", number: int = -1, size: int = 0, text: str = "") -> None:
        """This thread is about to make the call; its occurrence is one more than the calls that have succeeded."""
        track = self._tracks.get((site, kind)) or self.track(site, kind)
        n = track.before(number, size, self.recorder.text(text) if text else 0)
        if (site, "before") in self._armed:
            self._fire(site, "before", kind, n, self.track(site).passed + 1)

    def after(
        self, site: str, kind: str = "", number: int = -1, size: int = 0, text: str = "", progress: bool = True
    ) -> None:
        """The call has succeeded."""
        track = self._tracks.get((site, kind)) or self.track(site, kind)
        n = every = track.after(number, size, self.recorder.text(text) if text else 0, progress)
        if site in self._sites:
            if kind:
                every = self.track(site).count()
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
        if armed.ends:
            self.note("fault.signal", armed.index, str(armed.instant))
            if isinstance(fault, AtInstant):
                self._flags.raise_(armed.index)
            else:
                os.write(self.outlets.signals, armed.index.to_bytes(4, "little"))
        elif isinstance(fault, AtInstant):
            self.note("fault.reached", armed.index, str(armed.instant))
            fault.strike(Hand(self, fault, armed.index))

    @property
    def _flags(self) -> Flags:
        if self.outlets.flags is None:
            raise RuntimeError("a fault of this plan needs the run's flags, and this seam has none")
        return self.outlets.flags

    def await_flag(self, index: int, until: int) -> None:
        """This thread waits for the flag of a fault, at most until ``until`` (nanoseconds; -1: for ever)."""
        self._flags.wait(index, until)

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


class Hand:
    """See `harness.faults.hand.Hand`."""

    def __init__(self, seam: Seam, fault: Fault, index: int) -> None:
        self._seam, self._fault, self._index = seam, fault, index

    def fired(self) -> None:
        self._seam.note("fault.fired", self._index, str(self._fault))

    def over(self) -> None:
        self._seam.note("fault.over", self._index, str(self._fault))

    def waits(self, until: int = -1) -> None:
        what = f"fault.{kind_of(self._fault)}"
        self._seam.recorder.wait(now(), what, gives_up=until, text=str(self._fault), held=True)

    def runs(self) -> None:
        self._seam.recorder.done()

    def tell_lane(self) -> None:
        os.write(self._seam.outlets.calls, self._index.to_bytes(4, "little"))

    def await_word(self, until: int = -1) -> None:
        self._seam.await_flag(self._index, until)

    def squat(self, link: str) -> bool:
        return self._seam.outlets.squat(link)

    def change_collective(self, change: Change) -> None:
        self._seam.outlets.change(change, self.fired)

    def before_store_calls(self, deed: Callable[[], None]) -> None:
        self._seam.outlets.before_store(deed)

    def adjust_sockets(self, link: str, option: Literal["high_water", "linger"], value: int) -> None:
        self._seam.outlets.adjust(link, option, value, self.fired)

    def unlink(self, link: str) -> bool:
        return self._disk.unlink(link)

    def leave_stale(self, link: str, of: Literal["engine", "stranger"]) -> bool:
        return self._disk.leave_stale(link, of)

    def fill_disk(self) -> bool:
        return self._disk.fill()

    @property
    def _disk(self) -> Disk:
        if self._seam.outlets.disk is None:
            raise RuntimeError("a fault of this plan needs the engine's folder, and this seam has none")
        return self._seam.outlets.disk


_active: Seam | None = None


def active() -> Seam | None:
    """The seam of this process, or None where none is active."""
    return _active


def waiting(where: str, timeout_ms: float | None, text: Callable[[], str], call: Callable[[], Any]) -> Any:
    """Makes the call as a wait of this thread at that site, unless no seam is active or the thread already waits.

    ``timeout_ms`` is in milliseconds, None for a wait without end; ``text`` is asked for only if the wait is recorded.
    """
    seam = _active
    if seam is None or seam.recorder.waiting:
        return call()
    seam.blocks(where, timeout_ms=timeout_ms, text=text())
    try:
        return call()
    finally:
        seam.runs()


def activate(seam: Seam) -> None:
    """Makes the seam the one of this process."""
    global _active
    _active = seam


def deactivate() -> None:
    """Makes every wrapped call plain again."""
    global _active
    _active = None
