"""The test on which every proof of a wedge rests: between two looks nothing ran, is in flight, or is armed.

If a thread sleeps in both looks and was not run between them, it slept through; if all threads did, they all slept at
one common moment, and no wake-up was pending then. Threads that tick for ever by themselves are known by name and must
have ticked, or had the time to, without waking anybody. A system that passes can move again only by a timer; those
that end within the horizon make the answer "ends by itself", those beyond it are stated and count as never.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from harness.clock import MS, SECOND
from harness.history import DoubleLook, Snapshot, Thread, Wait
from harness.seam.operations import STORE
from harness.targets import Slice

TICK_MARGIN = 5 * MS
_GLOO_LOOP, _GLOO_TICK = "gloo_tcp_loop", 10 * MS
_ZMQ_IO = "ZMQbg/IO"
_LIBRARY_THREADS = ("ZMQbg/", "pt_gloo_runloop", "pt_autograd", "gloo_")
_HARMLESS_CALLS = ("futex",)

LIBRARY_SLICES = (Slice(f"{STORE}.", 0.01, None),)
"""A store in a file asks the file again and again."""

OVERDUE = 0.25
"""Seconds after its own limit in which a wait may still end by it."""


class Stillness(Struct, frozen=True):
    """What two looks come to.

    ``still``: nothing ran, nothing was in flight, nobody was stopped. ``ends_at``: the earliest armed timer within the
    horizon (nanoseconds), None for none. ``doubts``: what is unknown, each in a few words. ``facts``: what the test
    rests on. ``stopped``: the roles that are stopped while all the others are still; empty if anything moves.
    """

    still: bool
    ends_at: int | None
    doubts: tuple[str, ...]
    facts: tuple[str, ...]
    stopped: tuple[str, ...] = ()


_BLOCKED = "fault.block"
"""Where a thread waits that a plan has blocked."""


def ticks(name: str) -> bool:
    """Whether threads of this name may wake for ever by themselves."""
    return name == _GLOO_LOOP or name.startswith(_ZMQ_IO)


def tick_of(thread: Thread, horizon: int, looked: int) -> int | None:
    """How long one tick of a thread lasts that wakes for ever by itself (nanoseconds); None for any other thread."""
    if thread.name == _GLOO_LOOP:
        return _GLOO_TICK
    if thread.name.startswith(_ZMQ_IO) and thread.gives_up is not None and 0 <= thread.gives_up < horizon:
        return max(0, thread.gives_up - looked)
    return None


def slice_of(wait: Wait | None, slices: Sequence[Slice]) -> Slice | None:
    """The declared slices in which the wait is made, None for a wait that is made once.

    A slice has an end. A wait at the same site without one is no slice, but what a library does inside of one is.
    """
    if wait is None:
        return None
    declared = slices if wait.gives_up >= 0 else ()
    return next((found for found in (*LIBRARY_SLICES, *declared) if wait.site.startswith(found.sites)), None)


def gap_needed(process: Snapshot, horizon: int, looked: int, slices: Sequence[Slice]) -> int:
    """The least time between two looks (nanoseconds) so that every ticker of these threads had time to tick.

    The same for every wait that is made in slices.
    """
    ticks = [tick for thread in process.threads if (tick := tick_of(thread, horizon, looked)) is not None]
    ticks += [int(found.every * SECOND) for wait in process.waits if (found := slice_of(wait, slices)) is not None]
    return max(ticks) + TICK_MARGIN if ticks else 0


def test(
    looks: DoubleLook, names: Mapping[tuple[str, int], str], watches: Mapping[str, str], slices: Sequence[Slice]
) -> Stillness:
    """Applies the rule.

    ``names`` gives threads their names by role and thread id; ``watches`` and ``slices`` are the target's.
    """
    result = _Tally(looks, slices)
    pairs = _paired(looks)
    if pairs is None:
        return Stillness(False, None, (), ())
    gap = looks.b.began - looks.a.ended
    for before, after in pairs:
        waits = {wait.tid: wait for wait in after.waits}
        if not result.same_waits(before.waits, after.waits):
            return Stillness(False, None, (), ())
        if result.is_stopped(before, after):
            continue  # held by the plan, with all its timers: whoever stopped it is who can act
        for first, second in zip(before.threads, after.threads, strict=True):
            name = names.get((after.role, second.tid), second.name)
            wait = waits.get(second.tid)
            if not result.slept(first, second, wait, gap):
                return Stillness(False, None, (), ())
            result.timer(f"{after.role} {name} in {second.call}", first, second, wait, gap)
            result.account(after, second, name, wait, watches)
        for wait in after.waits:
            result.deadline(after.role, wait)
    result.outsiders()
    return result.verdict(len(pairs))


def _paired(looks: DoubleLook) -> list[tuple[Snapshot, Snapshot]] | None:
    """Each process in both looks, or None if a process or a thread came or went."""
    first = {snapshot.role: snapshot for snapshot in looks.a.processes}
    second = {snapshot.role: snapshot for snapshot in looks.b.processes}
    if first.keys() != second.keys():
        return None
    pairs = [(first[role], second[role]) for role in first]
    if any([t.tid for t in a.threads] != [t.tid for t in b.threads] for a, b in pairs):
        return None
    return pairs


class _Tally:
    """Collects what speaks for and against stillness."""

    def __init__(self, looks: DoubleLook, slices: Sequence[Slice]) -> None:
        self._looks = looks
        self._slices = slices
        self._horizon = looks.horizon
        self._ends: list[int] = []
        self._doubts: list[str] = []
        self._facts: list[str] = []
        self._threads = 0
        self._in_flight = False
        self._stopped: list[str] = []

    def same_waits(self, before: tuple[Wait, ...], after: tuple[Wait, ...]) -> bool:
        def key(wait: Wait) -> tuple[object, ...]:
            return wait.tid, wait.site, wait.number, wait.since, wait.progress

        return list(map(key, before)) == list(map(key, after))

    def is_stopped(self, before: Snapshot, after: Snapshot) -> bool:
        """Whether the process stood stopped by a signal through both looks, every thread of it."""
        pairs = list(zip(before.threads, after.threads, strict=True))
        if not pairs or any(a.state != "T" or b.state != "T" or a.runs != b.runs for a, b in pairs):
            return False
        self._stopped.append(after.role)
        return True

    def slept(self, first: Thread, second: Thread, wait: Wait | None, gap: int) -> bool:
        """Whether the thread slept through, or is a ticker that had its time and woke nobody.

        One that waits in slices is still in the same wait, and has had the time for a whole one.
        """
        self._threads += 1
        if first.state != "S" or second.state != "S":
            return False
        if first.runs == second.runs:
            return True
        sliced = slice_of(wait, self._slices)
        if sliced is not None:
            return gap >= int(sliced.every * SECOND)
        tick = tick_of(first, self._horizon, self._looks.a.began)
        return tick is not None and gap >= tick + TICK_MARGIN

    def timer(self, what: str, before: Thread, thread: Thread, wait: Wait | None, gap: int) -> None:
        """When the system call of a thread ends by itself; one that ticks must have ticked between the looks."""
        gives_up = thread.gives_up
        if slice_of(wait, self._slices) is not None:
            return  # the slice ends, the wait does not: see `deadline`
        tick = tick_of(thread, self._horizon, self._looks.b.began)
        if tick is not None:
            if thread.runs != before.runs or gap >= tick + TICK_MARGIN:
                self._facts.append(f"{what} ticks every {tick / MS:.0f} ms and woke nobody")
            else:
                self._ends.append(self._looks.b.ended + tick)
        elif gives_up is None:
            if wait is None:
                self._doubts.append(f"{what}: nobody knows when this call ends")
        elif gives_up >= 0:
            self._arm(what, gives_up)

    def deadline(self, role: str, wait: Wait) -> None:
        if wait.held and wait.gives_up < 0:
            if wait.site == _BLOCKED:
                self._stopped.append(role)  # as a stopped process: to heal the faults is what can end it
            else:
                self._in_flight = True  # the harness itself will end this one
        sliced = slice_of(wait, self._slices)
        if sliced is not None:
            self._sliced(f"{role} at {wait.site}", wait, sliced)
        elif wait.gives_up >= 0:
            self._arm(f"{role} at {wait.site}", wait.gives_up)

    def _sliced(self, what: str, wait: Wait, sliced: Slice) -> None:
        again = f"{what} waits again every {sliced.every * 1000:.0f} ms for the same thing"
        if sliced.limit is None:
            self._facts.append(f"{again}, without end")
            return
        limit = wait.since + int(sliced.limit * SECOND)
        late = (self._looks.b.ended - limit) / SECOND
        if late < OVERDUE:
            self._ends.append(limit)
        else:
            self._facts.append(f"{again}, and goes on {late:.2f} s after its own limit of {sliced.limit:g} s")

    def _arm(self, what: str, at: int) -> None:
        if at < self._horizon:
            self._ends.append(at)
        else:
            late = (at - self._looks.b.ended) / MS / 1000
            self._facts.append(f"{what} has a timer {late:.0f} s from now, beyond the horizon: counted as never")

    def account(
        self, process: Snapshot, thread: Thread, name: str, wait: Wait | None, watches: Mapping[str, str]
    ) -> None:
        """Every thread must be explained: by its wait slot, as a declared watch, as a library's own, or as idle."""
        if wait is not None or name in watches or thread.name.startswith(_LIBRARY_THREADS):
            return
        if thread.call in _HARMLESS_CALLS and thread.tid != process.pid:
            return
        self._doubts.append(f"{process.role} {name} sleeps in {thread.call}, where the seam does not see it")

    def outsiders(self) -> None:
        said = self._looks.outsiders
        if said.unannounced_deaths or not said.proxy_quiet or said.harness_due:
            self._in_flight = True
        if said.proxy_timer >= 0:
            self._arm("the proxy", said.proxy_timer)
        if said.held:
            held = ", ".join(str(index) for index in said.held)
            self._facts.append(f"what faults {held} hold can only be released by a role that is stuck")

    def verdict(self, processes: int) -> Stillness:
        gap = (self._looks.b.began - self._looks.a.ended) / MS
        facts = [
            f"{self._threads} threads of {processes} processes slept through two looks {gap:.1f} ms apart: "
            "same threads, no run between",
            "zygote: every death announced; proxy: nothing readable, nothing unwritten, no timer due; "
            "harness: nothing of its own due",
            *self._facts,
        ]
        ends = min(self._ends, default=None)
        stopped = () if self._in_flight else tuple(self._stopped)
        still = not self._in_flight and not self._stopped
        return Stillness(still, ends, tuple(self._doubts), tuple(facts), stopped)
