"""A look: every thread of every process of a run, as the kernel and the wait tables show them at one time.

For each thread the kernel tells its state, how often it was run (third field of ``schedstat``) and the system call in
which it sleeps, with its arguments. From those arguments follows when the call ends by itself.
"""

from __future__ import annotations

import json
import os
import platform
import struct
from collections.abc import Mapping
from pathlib import Path

from harness.clock import MS, SECOND, now, pause, wall
from harness.history import Look, Snapshot, Thread
from harness.seam.region import Region
from harness.stillness import ticks

NEVER = -1
_TICKER_TRIES, _TICKER_PAUSE = 10, 0.002

# Per call: which argument holds the time, and in which form. From the kernel's system call tables.
_X86_64 = {
    0: ("read", -1, "none"),
    7: ("poll", 2, "ms"),
    23: ("select", 4, "timeval"),
    35: ("nanosleep", 0, "timespec"),
    42: ("connect", -1, "none"),
    43: ("accept", -1, "none"),
    44: ("sendto", -1, "none"),
    45: ("recvfrom", -1, "none"),
    46: ("sendmsg", -1, "none"),
    47: ("recvmsg", -1, "none"),
    61: ("wait4", -1, "none"),
    202: ("futex", 3, "futex"),
    230: ("clock_nanosleep", 2, "timespec"),
    232: ("epoll_wait", 3, "ms"),
    247: ("waitid", -1, "none"),
    270: ("pselect6", 4, "timespec"),
    271: ("ppoll", 2, "timespec"),
    281: ("epoll_pwait", 3, "ms"),
    288: ("accept4", -1, "none"),
    441: ("epoll_pwait2", 3, "timespec"),
}
_AARCH64 = {
    22: ("epoll_pwait", 3, "ms"),
    63: ("read", -1, "none"),
    72: ("pselect6", 4, "timespec"),
    73: ("ppoll", 2, "timespec"),
    95: ("waitid", -1, "none"),
    98: ("futex", 3, "futex"),
    101: ("nanosleep", 0, "timespec"),
    115: ("clock_nanosleep", 2, "timespec"),
    202: ("accept", -1, "none"),
    206: ("sendto", -1, "none"),
    207: ("recvfrom", -1, "none"),
    211: ("sendmsg", -1, "none"),
    212: ("recvmsg", -1, "none"),
    242: ("accept4", -1, "none"),
    260: ("wait4", -1, "none"),
    441: ("epoll_pwait2", 3, "timespec"),
}
_CALLS = _AARCH64 if platform.machine() == "aarch64" else _X86_64
_FUTEX_WAIT_BITSET, _FUTEX_REALTIME = 9, 256
_TWO_WORDS = struct.Struct("<qq")


def look(processes: Mapping[str, int], regions: Mapping[str, Region]) -> Look | None:
    """Looks at the processes (role to pid). None as soon as one thread is awake."""
    began = now()
    snapshots = []
    for role, pid in processes.items():
        region = regions[role]
        threads = _threads(pid)
        if threads is None:
            return None
        snapshots.append(Snapshot(role, pid, threads, region.waits(), _tasks(region)))
    return Look(began, now(), tuple(snapshots))


def _threads(pid: int) -> tuple[Thread, ...] | None:
    found = []
    try:
        names = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return ()
    for tid in sorted(map(int, names)):
        try:
            thread = _at_rest(pid, tid)
        except OSError:
            return None  # it has just ended: something moves
        if thread.state not in "ST":
            return None
        found.append(thread)
    return tuple(found)


def _at_rest(pid: int, tid: int) -> Thread:
    """The thread; one that ticks gets a moment to fall asleep again.

    On a busy machine a ticker often waits for a core just when it is looked at, and a look that gives up for that would
    take many tries. The threads that do not tick are compared by their run counts, whenever each of them is read.
    """
    for _ in range(_TICKER_TRIES):
        thread = _thread(pid, tid)
        if thread.state in "ST" or not ticks(thread.name):
            break
        pause(_TICKER_PAUSE)
    return thread


def _thread(pid: int, tid: int) -> Thread:
    base = f"/proc/{pid}/task/{tid}/"
    stat = _read(base + "stat")
    name, _, rest = stat.partition("(")[2].rpartition(")")
    state = rest.split()[0]
    runs = int(_read(base + "schedstat").split()[2])
    try:
        call = _read(base + "syscall").split()
    except PermissionError:
        return Thread(tid, name, state, runs, "unreadable", None)
    if len(call) < 7:
        return Thread(tid, name, state, runs, call[0] if call else "", None)
    number, arguments = int(call[0]), [int(word, 16) for word in call[1:7]]
    label, _, _ = _CALLS.get(number, (f"call {number}", -1, "unknown"))
    return Thread(tid, name, state, runs, label, gives_up(pid, number, arguments))


def gives_up(pid: int, number: int, arguments: list[int]) -> int | None:
    """When a system call ends by itself: nanoseconds of CLOCK_MONOTONIC at the latest, NEVER, or None for unknown."""
    _, place, form = _CALLS.get(number, ("", -1, "unknown"))
    if form == "none":
        return NEVER
    if form == "unknown":
        return None
    value = arguments[place]
    if form == "ms":
        signed = value & 0xFFFFFFFF
        return NEVER if signed >= 1 << 31 else now() + signed * MS
    if value == 0:
        return NEVER
    words = _memory(pid, value)
    if words is None:
        return None
    seconds, fraction = words
    span = seconds * SECOND + fraction * (1000 if form == "timeval" else 1)
    if form != "futex":
        return now() + span
    operation = arguments[1]
    if operation & 0x7F != _FUTEX_WAIT_BITSET:
        return now() + span
    return now() + span - wall() if operation & _FUTEX_REALTIME else span


def _memory(pid: int, address: int) -> tuple[int, int] | None:
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            return _TWO_WORDS.unpack(memory.read(_TWO_WORDS.size))
    except (OSError, struct.error, OverflowError, ValueError):
        return None


def _read(path: str) -> str:
    return Path(path).read_text()


def _tasks(region: Region) -> tuple[str, ...]:
    raw = region.dump()
    if not raw:
        return ()
    try:
        state = json.loads(raw)
    except ValueError:
        return ()
    return tuple(f"{task['name']}: {' > '.join(task['in'])} awaits {task['awaits']}" for task in state["tasks"])
