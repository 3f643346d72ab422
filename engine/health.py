"""Whether a request submitted now could complete, from facts that cost the engine nothing.

Health is red while the engine is dead, while a process of it is stopped, while a step makes no progress, and while a
message that was sent does not arrive. Being slow is not red: whatever gets on, however slowly, is well. Red heals when
the cause is gone; dead does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.clock import now
from engine.errors import EngineStalledError
from engine.messages import rank_role
from engine.pulse import LinkReading, Reading

_STOPPED = ("T", "t")
"""Process states of Linux: stopped by a signal, or by a debugger."""


@dataclass(slots=True)
class Traffic:
    """What a client knows of its links.

    `sent` on `input` and `received` on `output` are the numbers of the last messages; `at` is the time of the last one
    sent, in seconds on the monotonic clock.
    """

    sent: int = 0
    received: int = 0
    at: float = 0.0


def is_stopped(pid: int) -> bool:
    """Whether the process is stopped. One that is gone is not: its death is somebody else's news."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] in _STOPPED


def stopped(pids: Sequence[int]) -> int | None:
    """The first of the processes that is stopped, by its place in `pids`; None if none is."""
    return next((rank for rank, pid in enumerate(pids) if is_stopped(pid)), None)


def furthest_behind(readings: Sequence[Reading]) -> int:
    """The rank that the others most likely wait for."""
    return min(
        range(len(readings)),
        key=lambda rank: (readings[rank].ended, readings[rank].begun, readings[rank].beats),
    )


def stalled_since(readings: Sequence[Reading], link: LinkReading, traffic: Traffic) -> float | None:
    """Since when (monotonic seconds) the engine has owed progress and made none; None while it owes nothing.

    Owed is a step that has begun on some rank and not ended on all, one that rank 0 has to begin, or a message of this
    client's on its way in.
    """
    if _in_step(readings) or readings[0].more or traffic.sent != link.taken:
        return max(traffic.at, *(reading.at for reading in readings))
    return None


def describe(readings: Sequence[Reading], link: LinkReading, traffic: Traffic, pids: Sequence[int]) -> tuple[str, str]:
    """Culprit and cause of a stall: the stopped rank, else the one that is furthest behind, else a lost message."""
    halted = stopped(pids)
    if halted is not None:
        return rank_role(halted), "it is stopped by a signal"
    if _in_step(readings):
        begun = max(reading.begun for reading in readings)
        behind = furthest_behind(readings)
        where = "has not begun it" if readings[behind].begun < begun else "is furthest behind in it"
        return rank_role(behind), f"step {begun} makes no progress, and {rank_role(behind)} {where}"
    if readings[0].more:
        return rank_role(0), f"step {readings[0].begun + 1} is to begin, and {rank_role(0)} does not begin it"
    return rank_role(0), f"message {traffic.sent} was sent on input and only {link.taken} were taken"


def check(readings: Sequence[Reading], link: LinkReading, traffic: Traffic, pids: Sequence[int], limit: float) -> None:
    """Raise :class:`EngineStalledError` if a process is stopped or nothing has moved for `limit` seconds."""
    since = stalled_since(readings, link, traffic)
    idle_for = 0.0 if since is None else now() - since
    if idle_for >= limit or stopped(pids) is not None:
        culprit, cause = describe(readings, link, traffic, pids)
        raise EngineStalledError(culprit, f"{cause} (no progress for {idle_for:.1f} s)" if since is not None else cause)


def _in_step(readings: Sequence[Reading]) -> bool:
    return any(reading.busy or reading.ended != readings[0].ended for reading in readings)
