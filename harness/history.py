"""The history of one run: every event of every process, merged on one clock, and all that an oracle may ask.

Worlds write histories, oracles read them; neither knows the other. A history can be saved as JSON lines (a header line,
then one line per event) and judged again later, long after the processes are gone. All times are nanoseconds of
CLOCK_MONOTONIC, which every process of one machine shares.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct, field

from harness import plan as plans
from harness.plan import Plan

FORMAT = 1


class HistoryError(ValueError):
    """A file that is no saved history; one clear sentence."""


class Event(Struct, frozen=True, omit_defaults=True):
    """One thing that one thread of one process did at the seam.

    ``side`` is ``before`` or ``after`` for the two ends of a wrapped call, ``mark`` for a note without extent. ``n`` is
    the occurrence of (role, site, kind); ``number`` is the frame's own number on its link, the number of a collective
    on its group, or the index of a request. ``text`` names a request, an error or a thread.
    """

    t: int
    role: str
    tid: int
    site: str
    side: Literal["before", "after", "mark"]
    kind: str = ""
    n: int = 0
    number: int = -1
    value: int = 0
    size: int = 0
    ok: bool = True
    text: str = ""

    @property
    def name(self) -> str:
        """The event as an instant is written; a mark without a side, of a request with its number."""
        what = f"{self.role}:{self.site}" + (f"[{self.kind}]" if self.kind else "")
        if self.side == "mark":
            return f"{what} of r{self.number}" if self.site.startswith("request.") else what
        return f"{what}#{self.n}:{self.side}"


class Process(Struct, frozen=True, omit_defaults=True):
    """One process of the run. ``status`` is its exit status (negative: killed by that signal), None while it lives.

    ``ended_by`` is ``itself`` (its own exit, or a signal from another process of the run or from a fault of the plan),
    or ``cleanup`` when only the harness's clean-up ended it. ``starved``: for how many seconds its main thread could
    have run and had no core.
    """

    role: str
    pid: int
    started: int
    ended: int | None = None
    status: int | None = None
    ended_by: Literal["itself", "cleanup"] | None = None
    log: str = ""
    starved: float = 0.0


class Frame(Struct, frozen=True, omit_defaults=True):
    """One frame that a proxy saw. ``fate``: passed, dropped, held, released, discarded; ``rule``: the fault's index."""

    t: int
    link: str
    connector: str
    direction: str
    connection: int
    kind: str
    number: int = -1
    nth: int = 0
    size: int = 0
    fate: str = "passed"
    rule: int = -1


class FaultCount(Struct, frozen=True):
    """What became of one fault of the plan: how often it was armed, its instant reached, and it fired.

    ``why`` says of one that was not reached what the run passed instead.
    """

    kind: str
    fault: str
    victim: str
    optional: bool
    armed: int
    reached: int
    fired: int
    why: str = ""


class Thread(Struct, frozen=True, omit_defaults=True):
    """One thread as a look saw it. ``runs`` is how often the kernel has run it; ``syscall`` its number and arguments.

    ``gives_up`` is when the system call ends by itself (nanoseconds, CLOCK_MONOTONIC), -1 for never, None for unknown.
    """

    tid: int
    name: str
    state: str
    runs: int
    call: str
    gives_up: int | None = -1


class Wait(Struct, frozen=True, omit_defaults=True):
    """One entry of a process's wait table: what a thread is blocked on, since when, and what it says about its end.

    ``gives_up`` is the wait's own end (nanoseconds), -1 for none. ``progress`` counts the thread's successful calls.
    ``sliced`` says that the thread wakes and waits again for the same thing.
    """

    tid: int
    site: str
    kind: str = ""
    number: int = -1
    since: int = 0
    gives_up: int = -1
    progress: int = 0
    sliced: bool = False
    held: bool = False
    text: str = ""


class Snapshot(Struct, frozen=True, omit_defaults=True):
    """One process in one look: its threads, its wait table and, for an asyncio loop, what its tasks await."""

    role: str
    pid: int
    threads: tuple[Thread, ...]
    waits: tuple[Wait, ...]
    tasks: tuple[str, ...] = ()


class Look(Struct, frozen=True, omit_defaults=True):
    """All live processes of the run, seen between ``began`` and ``ended``."""

    began: int
    ended: int
    processes: tuple[Snapshot, ...]


class Outsiders(Struct, frozen=True, omit_defaults=True):
    """What those outside the run said between two looks: the zygote, the proxy and the harness itself."""

    unannounced_deaths: int = 0
    proxy_quiet: bool = True
    proxy_timer: int = -1
    held: tuple[int, ...] = ()
    harness_due: int = 0


class DoubleLook(Struct, frozen=True, omit_defaults=True):
    """Look A, the outsiders' answers, look B: all that the proof of a wedge may rest on, besides the events."""

    a: Look
    outsiders: Outsiders
    b: Look
    horizon: int


class History(Struct, frozen=True, omit_defaults=True):
    """The merged history of one run.

    ``golden`` holds the reference tokens of each request. ``cleanup`` is when the harness began to clean up: what
    happens later never counts for the engine. ``residue`` names what the run left behind. ``ended`` says why the world
    stopped watching: ``done`` (the client program ended), ``wedge`` (a double look held) or ``budget``.
    ``stalled`` is for how many seconds the machine itself ran nothing, or let processes of the run wait for a core.
    ``left_alone`` is for how many seconds a wedge was watched on, and ``moved`` whether anything moved in that time, so
    that it was none. ``stacks`` are those of a wedge's processes, by role.
    """

    plan: Plan
    began: int
    cleanup: int
    ended: Literal["done", "wedge", "budget"]
    events: tuple[Event, ...]
    processes: tuple[Process, ...]
    frames: tuple[Frame, ...] = ()
    faults: tuple[FaultCount, ...] = ()
    golden: dict[str, tuple[int, ...]] = field(default_factory=dict)
    residue: tuple[str, ...] = ()
    look: DoubleLook | None = None
    lost_events: int = 0
    stalled: float = 0.0
    left_alone: float = 0.0
    moved: bool = False
    stacks: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def of(self, role: str | None = None, site: str | None = None, side: str | None = None) -> Iterator[Event]:
        """The events of a role, a site and a side, each if given, in order of time."""
        for event in self.events:
            if (
                (role is None or event.role == role)
                and (site is None or event.site == site)
                and (side is None or event.side == side)
            ):
                yield event

    def process(self, role: str) -> Process | None:
        """The process of a role, or None if it was never started."""
        return next((process for process in self.processes if process.role == role), None)

    @property
    def last_progress(self) -> int:
        """When anything last succeeded at the seam before the clean-up, in nanoseconds."""
        times = [event.t for event in self.events if event.ok and event.side != "before" and event.t <= self.cleanup]
        return max(times, default=self.began)


class _Header(Struct, frozen=True):
    format: int
    history: History


def dump(history: History) -> bytes:
    """The saved form: gzip of a header line and one JSON line per event."""
    head = msgspec.structs.replace(history, events=())
    lines = [msgspec.json.encode(_Header(FORMAT, head), enc_hook=plans.encode_hook)]
    lines += [msgspec.json.encode(event) for event in history.events]
    return gzip.compress(b"\n".join(lines) + b"\n", mtime=0)


def load(data: bytes) -> History:
    """Reads what `dump` wrote. Raises HistoryError."""
    try:
        lines = gzip.decompress(data).splitlines()
        header = msgspec.json.decode(lines[0], type=_Header, dec_hook=plans.decode_hook)
        events = tuple(msgspec.json.decode(line, type=Event) for line in lines[1:])
    except (OSError, EOFError, zlib.error, IndexError, msgspec.MsgspecError, ValueError) as error:
        raise HistoryError(f"not a saved history: {error}") from None
    if header.format != FORMAT:
        raise HistoryError(f"a history of format {header.format}; this version reads format {FORMAT}")
    return msgspec.structs.replace(header.history, events=events)


def save(history: History, path: Path) -> None:
    """Writes the saved form to a file."""
    path.write_bytes(dump(history))


def merge(events: Iterable[Event]) -> tuple[Event, ...]:
    """Events of several processes in one order of time; events of one thread keep their order."""
    return tuple(sorted(events, key=lambda event: event.t))
