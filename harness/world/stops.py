"""The processes that faults of a run have stopped: the lane's part of the deed, and how each is continued.

A role that stops itself first writes its fault's number into a pipe. The lane stops the roles that go with it, sees all
of them stopped, and only then lets the time run: a SIGCONT that came before its SIGSTOP would be lost.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from harness.clock import MS, SECOND, now
from harness.faults import Stop
from harness.history import Process
from harness.plan import Plan
from harness.zygote import wire

_LOOK_AGAIN = MS
"""How soon to look again whether a process has stopped (nanoseconds): a signal takes microseconds on an idle core."""


class _Deed:
    """One stop under way. ``due`` is None until all its roles are stopped; ``last`` is None where no clock ends it."""

    def __init__(self, fault: Stop) -> None:
        self.roles = fault.roles
        self.last = None if fault.seconds is None else int(fault.seconds * SECOND)
        self.stood = False
        self.due: int | None = None


class Stops:
    """All stops of one run. ``signal_role`` sends a signal to a role, however it is done."""

    def __init__(self, plan: Plan, signal_role: Callable[[wire.Signal], None]) -> None:
        self._plan = plan
        self._signal = signal_role
        self._deeds: list[_Deed] = []
        self._healed = False
        self._heard, self._says = -1, -1
        if any(isinstance(fault, Stop) for fault in plan.faults):
            self._heard, self._says = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    @property
    def heard(self) -> int:
        """The descriptor to poll for calls, -1 in a plan that stops nobody."""
        return self._heard

    def hand_over(self) -> int:
        """The descriptor for the processes of the run; the caller closes it once it has been passed on."""
        says, self._says = self._says, -1
        return says if says >= 0 else os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

    @property
    def clocked(self) -> int:
        """How many stops are still to take hold, or will end by the clock: as long as there is one, more can happen."""
        return sum(not deed.stood or deed.due is not None for deed in self._deeds)

    def next(self) -> int | None:
        """When there is something to do (nanoseconds), None if only a call can bring it."""
        times = [now() + _LOOK_AGAIN if not deed.stood else deed.due for deed in self._deeds]
        return min((time for time in times if time is not None), default=None)

    def act(self, processes: Mapping[str, Process]) -> None:
        """Hears calls, stops whom they ask for, and continues whose time is over."""
        for index in self._calls():
            fault = self._plan.faults[index]
            if isinstance(fault, Stop):
                for role in fault.also:
                    self._signal(wire.Signal(role, signal.SIGSTOP))
                self._deeds.append(_Deed(fault))
        for deed in list(self._deeds):
            if not deed.stood:
                deed.stood = all(_stands(processes.get(role)) for role in deed.roles)
                if deed.stood and (self._healed or deed.last is not None):
                    deed.due = now() + (0 if self._healed or deed.last is None else deed.last)
            if deed.due is not None and deed.due <= now():
                self._end(deed)

    def heal(self) -> None:
        """Continues all that are stopped, and from now on whoever is stopped, at once."""
        self._healed = True
        for deed in list(self._deeds):
            if deed.stood:
                self._end(deed)

    def close(self) -> None:
        """Forgets every stop and gives back the descriptors: whatever is stopped now is for the clean-up to end."""
        self._deeds.clear()
        for fd in (self._heard, self._says):
            if fd >= 0:
                os.close(fd)
        self._heard = self._says = -1

    def _end(self, ended: _Deed) -> None:
        self._deeds.remove(ended)
        still = {role for deed in self._deeds for role in deed.roles}
        for role in ended.roles:
            if role not in still:
                self._signal(wire.Signal(role, signal.SIGCONT))

    def _calls(self) -> list[int]:
        data = b""
        if self._heard >= 0:
            with contextlib.suppress(BlockingIOError):
                data = os.read(self._heard, 4096)
        return [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]


def _stands(process: Process | None) -> bool:
    """Whether a process is stopped; one that has ended, or never began, counts too: nothing is to be waited for."""
    if process is None or process.status is not None:
        return True
    try:
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state not in "RSD"
