"""The shared memory of one process: its events, its wait table, its names. Written inside, read outside, after SIGKILL.

One anonymous memory file per run holds one region per process. A region is

    header      role, counters
    dump        what the asyncio loop's tasks await (JSON), under a sequence lock
    strings     every name once; records carry its number
    waits       one slot per thread, under a sequence lock
    events      fixed-size records, only ever appended; when they are full, later ones are counted as lost

A record becomes visible by its last field, so that a process killed while it writes leaves no half event.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import threading
from collections.abc import Iterator

from harness.clock import now
from harness.history import Event, Wait
from harness.seam import flags

REGION_BYTES = 4 << 20
MAX_PROCESSES = 16
FLAGS_AT = REGION_BYTES * MAX_PROCESSES
"""Where the flags of the run's faults are; see `harness.seam.flags`."""

_HEADER = struct.Struct("<8sIIQQQ")  # magic, pid, bytes of strings, events allocated, progress, lost
_MAGIC = b"nowedge1"
_STRINGS_USED, _ALLOCATED, _PROGRESS, _LOST = 12, 16, 24, 32
_DUMP_AT, _DUMP_BYTES = 4096, 32 << 10
_STRINGS_AT, _STRINGS_BYTES = _DUMP_AT + _DUMP_BYTES, 64 << 10
_WAITS_AT, _WAIT_SLOTS, _WAIT_BYTES = _STRINGS_AT + _STRINGS_BYTES, 64, 96
_EVENTS_AT = _WAITS_AT + _WAIT_SLOTS * _WAIT_BYTES
_EVENT = struct.Struct("<QIIqqHHHBBII")  # t, tid, n, number, value, site, kind, text, side, ok, size, committed
_EVENT_OF_TRACK = struct.Struct("<QIIqqQII")  # the same, with all from site to ok as one number
_WAIT = struct.Struct("<IIHHHBBqqqQ")  # version, tid, site, kind, text, state, flags, number, since, gives up, progress
_WAIT_OF_TRACK = struct.Struct("<IIQqqqQ")  # the same, with all from site to flags as one number
_WAIT_HEAD = 8
"""Where a wait's site, kind, text, state and flags begin; 0 for a thread that does not wait."""
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
MAX_EVENTS = (REGION_BYTES - _EVENTS_AT) // _EVENT.size
_MAX_TEXT = 400
_ROLE = 1
"""The number of the role among the strings; 0 is the empty one."""
_SIDES = ("before", "after", "mark")
_BEFORE, _AFTER, _ = range(3)
_SIDE_NUMBERS = {side: number for number, side in enumerate(_SIDES)}
_EVENT_BYTES = _EVENT.size
_ALLOCATED_STEP, _BEYOND = 16, 64
"""Every so many events the header says how many there are; a reader looks for committed ones so far beyond that."""
_SLICED, _HELD = 1, 2
_TEXT_SHIFT, _SIDE_SHIFT, _OK_SHIFT, _STATE_SHIFT, _FLAGS_SHIFT = 32, 48, 56, 48, 56


def create() -> int:
    """A fresh anonymous memory file with room for every process of one run; returns its descriptor."""
    fd = os.memfd_create("nowedge-run", os.MFD_CLOEXEC)
    os.ftruncate(fd, FLAGS_AT + flags.BYTES)
    return fd


class _Thread:
    """What the recorder keeps per thread."""

    __slots__ = ("key", "progress", "since", "slot", "tid", "version", "waiting")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        """Where the thread's wait is, 0 if there was no room for it."""
        self.tid = threading.get_native_id()
        self.progress = 0
        self.version = 0
        self.key: tuple[object, ...] = ()
        self.since = 0
        self.waiting = False


class _Local(threading.local):
    """Where each thread finds its own; an attribute of it costs more than one of a plain object."""

    me: _Thread | None = None


class Recorder:
    """The writing side, inside the process. Every method may be called from any thread; none ever raises or blocks."""

    def __init__(self, memory: int, index: int, role: str) -> None:
        self._map = mmap.mmap(memory, REGION_BYTES, offset=index * REGION_BYTES)
        _HEADER.pack_into(self._map, 0, _MAGIC, os.getpid(), 0, 0, 0, 0)
        self._allocate = itertools.count()
        self._slots = itertools.count()
        self._strings: dict[str, int] = {}
        self._strings_used = 0
        self._lock = threading.Lock()
        self._local = _Local()
        self._progress = 0
        self._dump_version = 0
        self.role = role
        self._name("")
        self._name(role)

    def _name(self, text: str) -> int:
        number = self._strings.get(text)
        if number is not None:
            return number
        with self._lock:
            if text in self._strings:
                return self._strings[text]
            data = text.encode("utf-8", "replace")[:_MAX_TEXT]
            end = self._strings_used + 2 + len(data)
            if end > _STRINGS_BYTES or len(self._strings) >= 0xFFFF:
                return 0
            start = _STRINGS_AT + self._strings_used
            self._map[start : start + 2 + len(data)] = len(data).to_bytes(2, "little") + data
            self._strings_used = end
            number = len(self._strings)
            self._strings[text] = number
            _U32.pack_into(self._map, _STRINGS_USED, end)
            return number

    def _begin(self) -> _Thread:
        """This thread is here for the first time."""
        index = next(self._slots)
        thread = self._local.me = _Thread(_WAITS_AT + index * _WAIT_BYTES if index < _WAIT_SLOTS else 0)
        return thread

    def event(
        self,
        t: int,
        site: str,
        side: str,
        kind: str = "",
        n: int = 0,
        number: int = -1,
        value: int = 0,
        size: int = 0,
        ok: bool = True,
        text: str = "",
    ) -> None:
        """Appends one event. ``side`` is before, after or mark."""
        # Every wrapped call comes by here, so nothing is called that need not be.
        index = next(self._allocate)
        if index >= MAX_EVENTS:
            self._lose(index)
            return
        numbers, thread = self._strings, self._local.me or self._begin()
        if (site_number := numbers.get(site)) is None:
            site_number = self._name(site)
        if (kind_number := numbers.get(kind)) is None:
            kind_number = self._name(kind)
        if (text_number := numbers.get(text)) is None:
            text_number = self._name(text)
        _EVENT.pack_into(
            self._map,
            _EVENTS_AT + index * _EVENT_BYTES,
            t,
            thread.tid,
            n,
            number,
            value,
            site_number,
            kind_number,
            text_number,
            _SIDE_NUMBERS[side],
            ok,
            size,
            1,
        )
        if not index % _ALLOCATED_STEP:
            _U64.pack_into(self._map, _ALLOCATED, index + 1)

    def _lose(self, index: int) -> None:
        """There is no room for the event of that index."""
        _U64.pack_into(self._map, _LOST, index - MAX_EVENTS + 1)

    def clear(self) -> None:
        """Forgets all events: the next one is the first again."""
        used = min(next(self._allocate), MAX_EVENTS) * _EVENT_BYTES
        self._map[_EVENTS_AT : _EVENTS_AT + used] = bytes(used)
        _U64.pack_into(self._map, _ALLOCATED, 0)
        _U64.pack_into(self._map, _LOST, 0)
        self._allocate = itertools.count()

    def progress(self) -> None:
        """Something succeeded in this thread: a frame moved, a collective finished, a token reached its user."""
        thread = self._local.me or self._begin()
        thread.progress += 1
        self._progress += 1
        _U64.pack_into(self._map, _PROGRESS, self._progress)

    def wait(
        self,
        t: int,
        site: str,
        kind: str = "",
        number: int = -1,
        gives_up: int = -1,
        text: str = "",
        held: bool = False,
    ) -> None:
        """This thread is about to block. The same wait entered again without progress between is one sliced wait."""
        thread = self._local.me or self._begin()
        thread.waiting = True
        if not thread.slot:
            return
        key = (site, number, text, thread.progress)
        sliced = key == thread.key
        if not sliced:
            thread.key, thread.since = key, t
        flags = (_SLICED if sliced else 0) | (_HELD if held else 0)
        self._write_slot(thread, site, kind, text, 1, flags, number, gives_up)

    def done(self) -> None:
        """This thread no longer blocks."""
        thread = self._local.me
        if thread is not None:
            thread.waiting = False
            if thread.slot:
                _U64.pack_into(self._map, thread.slot + _WAIT_HEAD, 0)

    @property
    def waiting(self) -> bool:
        """Whether this thread is in a wait."""
        thread = self._local.me
        return thread is not None and thread.waiting

    def _write_slot(
        self, thread: _Thread, site: str, kind: str, text: str, state: int, flags: int, number: int, gives_up: int
    ) -> None:
        numbers, slot = self._strings, thread.slot
        if (site_number := numbers.get(site)) is None:
            site_number = self._name(site)
        if (kind_number := numbers.get(kind)) is None:
            kind_number = self._name(kind)
        if (text_number := numbers.get(text)) is None:
            text_number = self._name(text)
        version = thread.version = thread.version + 2
        _U32.pack_into(self._map, slot, version - 1)
        _WAIT.pack_into(
            self._map,
            slot,
            version - 1,
            thread.tid,
            site_number,
            kind_number,
            text_number,
            state,
            flags,
            number,
            thread.since,
            gives_up,
            thread.progress,
        )
        _U32.pack_into(self._map, slot, version)

    def track(self, site: str, kind: str = "") -> Track:
        """What records a site that is passed often, for one kind of frame."""
        return Track(self, self._name(site) | self._name(kind) << 16, site)

    def text(self, text: str) -> int:
        """The number that a :class:`Track` takes for that text."""
        return self._name(text) << _TEXT_SHIFT

    def dump(self, data: bytes) -> None:
        """Replaces the loop dump (JSON)."""
        data = data[: _DUMP_BYTES - 8]
        self._dump_version += 1
        _U32.pack_into(self._map, _DUMP_AT, self._dump_version)
        _U32.pack_into(self._map, _DUMP_AT + 4, len(data))
        self._map[_DUMP_AT + 8 : _DUMP_AT + 8 + len(data)] = data
        self._dump_version += 1
        _U32.pack_into(self._map, _DUMP_AT, self._dump_version)


class Track:
    """One site with one kind of frame in this process: counts how often it is passed, and records it cheaply.

    What :class:`Recorder` does in several calls is done in one here, and what never changes is looked up once.
    """

    __slots__ = ("_after", "_before", "_counter", "_head", "_recorder", "_site", "passed")

    def __init__(self, recorder: Recorder, head: int, site: str) -> None:
        self._recorder, self._head, self._site = recorder, head, site
        self._before = head | _BEFORE << _SIDE_SHIFT | 1 << _OK_SHIFT
        self._after = head | _AFTER << _SIDE_SHIFT | 1 << _OK_SHIFT
        # Taken from an iterator, which needs no lock; how far it is may lag for an instant.
        self._counter = itertools.count(1)
        self.passed = 0

    # Every wrapped call comes by here, so nothing is called that need not be, and the same few lines stand twice.

    def before(self, number: int = -1, size: int = 0, text: int = 0) -> int:
        """This thread is about to make the call; its occurrence is one more than the calls that have succeeded."""
        n = self.passed + 1
        recorder = self._recorder
        index = next(recorder._allocate)
        if index >= MAX_EVENTS:
            recorder._lose(index)
            return n
        thread = recorder._local.me or recorder._begin()
        at = _EVENTS_AT + index * _EVENT_BYTES
        _EVENT_OF_TRACK.pack_into(recorder._map, at, now(), thread.tid, n, number, 0, self._before | text, size, 1)
        if not index % _ALLOCATED_STEP:
            _U64.pack_into(recorder._map, _ALLOCATED, index + 1)
        return n

    def after(self, number: int = -1, size: int = 0, text: int = 0, progress: bool = True) -> int:
        """The call has succeeded, and something has got on by it unless ``progress`` is False; its occurrence."""
        n = self.passed = next(self._counter)
        recorder = self._recorder
        thread = recorder._local.me or recorder._begin()
        if progress:
            thread.progress += 1
            done = recorder._progress = recorder._progress + 1
            _U64.pack_into(recorder._map, _PROGRESS, done)
        index = next(recorder._allocate)
        if index >= MAX_EVENTS:
            recorder._lose(index)
            return n
        at = _EVENTS_AT + index * _EVENT_BYTES
        _EVENT_OF_TRACK.pack_into(recorder._map, at, now(), thread.tid, n, number, 0, self._after | text, size, 1)
        if not index % _ALLOCATED_STEP:
            _U64.pack_into(recorder._map, _ALLOCATED, index + 1)
        return n

    def count(self) -> int:
        """The call has succeeded, which is recorded elsewhere; its occurrence."""
        n = self.passed = next(self._counter)
        return n

    def wait(self, t: int, number: int, gives_up: int) -> None:
        """This thread is about to block here, as with :meth:`Recorder.wait`."""
        recorder = self._recorder
        thread = recorder._local.me or recorder._begin()
        slot = thread.slot
        thread.waiting = True
        if not slot:
            return
        head = self._head | 1 << _STATE_SHIFT
        key = (self._site, number, "", thread.progress)
        if key == thread.key:
            head |= _SLICED << _FLAGS_SHIFT
        else:
            thread.key, thread.since = key, t
        version = thread.version = thread.version + 2
        _U32.pack_into(recorder._map, slot, version - 1)
        _WAIT_OF_TRACK.pack_into(
            recorder._map, slot, version - 1, thread.tid, head, number, thread.since, gives_up, thread.progress
        )
        _U32.pack_into(recorder._map, slot, version)


class Region:
    """The reading side, outside the process."""

    def __init__(self, memory: int, index: int) -> None:
        self._map = mmap.mmap(memory, REGION_BYTES, offset=index * REGION_BYTES)
        self._names: list[str] = []
        self._names_read = 0

    def close(self) -> None:
        self._map.close()

    @property
    def progress(self) -> int:
        """How many seam calls have succeeded in this process."""
        return int(_U64.unpack_from(self._map, _PROGRESS)[0])

    @property
    def lost(self) -> int:
        """How many events found no room."""
        return int(_U64.unpack_from(self._map, _LOST)[0])

    @property
    def role(self) -> str:
        return self._text(_ROLE)

    def _text(self, number: int) -> str:
        if number >= len(self._names):
            used = _U32.unpack_from(self._map, _STRINGS_USED)[0]
            while self._names_read < used:
                at = _STRINGS_AT + self._names_read
                size = int.from_bytes(self._map[at : at + 2], "little")
                self._names.append(self._map[at + 2 : at + 2 + size].decode("utf-8", "replace"))
                self._names_read += 2 + size
        return self._names[number] if number < len(self._names) else "?"

    def events(self, start: int = 0) -> Iterator[Event]:
        """The committed events from the ``start``-th on."""
        allocated = min(_U64.unpack_from(self._map, _ALLOCATED)[0] + _BEYOND, MAX_EVENTS)
        role = self.role
        for index in range(start, allocated):
            record = _EVENT.unpack_from(self._map, _EVENTS_AT + index * _EVENT.size)
            if not record[-1]:
                continue
            t, tid, n, number, value, site, kind, text, side, ok, size, _ = record
            yield Event(
                t=t,
                role=role,
                tid=tid,
                site=self._text(site),
                side=_SIDES[side],  # type: ignore[arg-type]
                kind=self._text(kind) if kind else "",
                n=n,
                number=number,
                value=value,
                size=size,
                ok=bool(ok),
                text=self._text(text) if text else "",
            )

    def waits(self) -> tuple[Wait, ...]:
        """The slots of the threads that block now. A slot being written is left out: its thread is awake."""
        found = []
        for index in range(_WAIT_SLOTS):
            at = _WAITS_AT + index * _WAIT_BYTES
            record = _WAIT.unpack_from(self._map, at)
            version, tid, site, kind, text, state, flags, number, since, gives_up, progress = record
            if not version:
                break
            if version % 2 or not state or _U32.unpack_from(self._map, at)[0] != version:
                continue
            found.append(
                Wait(
                    tid=tid,
                    site=self._text(site),
                    kind=self._text(kind) if kind else "",
                    number=number,
                    since=since,
                    gives_up=gives_up,
                    progress=progress,
                    sliced=bool(flags & _SLICED),
                    held=bool(flags & _HELD),
                    text=self._text(text) if text else "",
                )
            )
        return tuple(found)

    def dump(self) -> bytes:
        """The last loop dump, or nothing while one is written."""
        version, size = struct.unpack_from("<II", self._map, _DUMP_AT)
        data = bytes(self._map[_DUMP_AT + 8 : _DUMP_AT + 8 + size])
        return data if version % 2 == 0 and _U32.unpack_from(self._map, _DUMP_AT)[0] == version else b""
