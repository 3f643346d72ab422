"""The lane's part of the faults of a run: signals to others than those who ask, stops that end, threads that wait.

A role that needs the lane writes its fault's number into a pipe, and the client program `HEAL` before its demand. A
stop is over only once all its roles were seen to be stopped, and only then does its time run: a SIGCONT that came
before its SIGSTOP would be lost. Who asked for a signal to somebody else waits for the fault's flag, which is raised
when the deed is seen to be done.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from harness.clock import MS, SECOND, now
from harness.faults import AGAIN, Block, Kill, Restart, Stop, Store, Terminate
from harness.faults.settings import LimitFault
from harness.history import Process
from harness.plan import Plan
from harness.seam.flags import HEAL, Flags
from harness.zygote import wire

_LOOK_AGAIN = MS
"""How soon to look again whether a deed is done (nanoseconds): a signal takes microseconds on an idle core."""


class _Stopping:
    """One stop under way. ``due`` is None until all its roles are stopped; ``last`` is None where no clock ends it."""

    def __init__(self, index: int, fault: Stop) -> None:
        self.index = index
        self.fault = fault
        self.last = None if fault.seconds is None else int(fault.seconds * SECOND)
        self.stood = False
        self.due: int | None = None


class Deeds:
    """All deeds of one run. ``tell`` is for the zygote; ``flags`` is what the roles wait for.

    ``relieve`` is called when the client program wants faults healed, for what is not the deeds' own to undo.
    """

    def __init__(
        self,
        plan: Plan,
        tell: Callable[[wire.Message], None],
        flags: Flags,
        relieve: Callable[[], None] = lambda: None,
    ) -> None:
        self._plan = plan
        self._tell = tell
        self._flags = flags
        self._relieve = relieve
        self._stops: list[_Stopping] = []
        self._killing: list[int] = []
        self._again: list[str] = []
        self._limits: list[LimitFault] = []
        self._processes: Mapping[str, Process] = {}
        self._healed = False
        self._heard, self._says = -1, -1
        if plan.faults:
            self._heard, self._says = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    @property
    def heard(self) -> int:
        """The descriptor to poll for calls, -1 in a plan that needs none."""
        return self._heard

    def hand_over(self) -> int:
        """The descriptor for the processes of the run; the caller closes it once it has been passed on."""
        says, self._says = self._says, -1
        return says if says >= 0 else os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

    @property
    def clocked(self) -> int:
        """How many deeds are still to take hold, or will end by the clock: while there is one, more can happen."""
        return len(self._killing) + sum(not stop.stood or stop.due is not None for stop in self._stops)

    @property
    def bearing(self) -> bool:
        """Whether a process is still to begin in the place of another."""
        restarts = any(isinstance(self._plan.faults[index], Restart) for index in self._killing)
        return restarts or any(role not in self._processes for role in self._again)

    def next(self) -> int | None:
        """When there is something to do (nanoseconds), None if only a call can bring it."""
        times = [now() + _LOOK_AGAIN if not stop.stood else stop.due for stop in self._stops]
        times += [now() + _LOOK_AGAIN] * bool(self._killing)
        return min((time for time in times if time is not None), default=None)

    def act(self, processes: Mapping[str, Process]) -> None:
        """Hears calls, does what they ask for, continues whose time is over, and lets those go on who waited."""
        self._processes = processes
        for index in self._calls():
            if index == HEAL:
                self.relieve()
            else:
                self._begin(index, self._plan.faults[index])
        for index in list(self._killing):
            if _has_ended(processes.get(self._plan.faults[index].victim)):
                self._killing.remove(index)
                if isinstance(self._plan.faults[index], Restart):
                    victim = self._plan.faults[index].victim
                    self._tell(wire.Again(victim, victim + AGAIN))
                    self._again.append(victim + AGAIN)
                self._flags.raise_(index)
        for stop in list(self._stops):
            if not stop.stood:
                stop.stood = all(_stands(processes.get(role)) for role in stop.fault.roles)
                if stop.stood:
                    self._flags.raise_(stop.index)
                    if self._healed:
                        stop.due = now()
                    elif stop.last is not None and stop.due is None:
                        stop.due = now() + stop.last
            if stop.stood and stop.due is not None and stop.due <= now():
                self._end(stop)

    def heal(self) -> None:
        """Continues all that are stopped, lets all go on that are blocked, and from now on whoever comes to that."""
        self._healed = True
        for index, fault in enumerate(self._plan.faults):
            if isinstance(fault, Block | Store):
                self._flags.raise_(index)
        self._undo()

    def relieve(self) -> None:
        """Undoes what stands now, and only that; then raises the flag `HEAL`."""
        self._relieve()
        self._undo()
        self._flags.raise_(HEAL)

    def let_go(self, index: int) -> None:
        """Lets the thread go on that a fault has blocked."""
        self._flags.raise_(index)

    def _undo(self) -> None:
        for stop in list(self._stops):
            if stop.stood:
                self._end(stop)
            else:
                stop.due = now()  # when it stands: a SIGCONT before its SIGSTOP would be lost
        while self._limits:
            limited = self._limits.pop()
            process = self._processes.get(limited.victim)
            if process is not None and process.status is None:
                with contextlib.suppress(OSError):  # it has just ended
                    limited.restore(process.pid)

    def close(self) -> None:
        """Forgets every deed and gives back the descriptors: whatever is stopped now is for the clean-up to end."""
        self._stops.clear()
        self._killing.clear()
        self._flags.close()
        for fd in (self._heard, self._says):
            if fd >= 0:
                os.close(fd)
        self._heard = self._says = -1

    def _begin(self, index: int, fault: object) -> None:
        if isinstance(fault, Stop):
            for role in fault.roles if fault.remote else fault.also:
                self._tell(wire.Signal(role, signal.SIGSTOP))
            self._stops.append(_Stopping(index, fault))
        elif isinstance(fault, Kill | Restart):
            self._tell(wire.Signal(fault.victim, signal.SIGKILL))
            self._killing.append(index)
        elif isinstance(fault, Terminate):
            # The zygote has sent it before it answers whatever is said next; what the victim does then is its own.
            self._tell(wire.Signal(fault.victim, fault.number))
            self._flags.raise_(index)
        elif isinstance(fault, LimitFault):
            self._limits.append(fault)

    def _end(self, ended: _Stopping) -> None:
        self._stops.remove(ended)
        still = {role for stop in self._stops for role in stop.fault.roles}
        for role in ended.fault.roles:
            if role not in still:
                self._tell(wire.Signal(role, signal.SIGCONT))

    def _calls(self) -> list[int]:
        data = b""
        if self._heard >= 0:
            with contextlib.suppress(BlockingIOError):
                data = os.read(self._heard, 4096)
        return [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]


def _has_ended(process: Process | None) -> bool:
    """Whether a process has ended; one that never began counts too: nothing is to be waited for."""
    return process is None or process.status is not None


def _stands(process: Process | None) -> bool:
    """Whether a process is stopped, or has ended."""
    if process is None or process.status is not None:
        return True
    try:
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state not in "RSD"
