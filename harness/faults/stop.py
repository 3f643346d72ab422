"""stop: one or several processes are stopped by SIGSTOP and continued later, as a debugger or a frozen machine does it.

A stopped process is silent to its peers: no connection closes, no error comes. It is held by the plan, never a wedge.
"""

from __future__ import annotations

import math
import signal
import threading

from harness.faults.hand import Hand
from harness.faults.settings import SignalFault


class Stop(SignalFault, frozen=True, forbid_unknown_fields=True, tag="stop", tag_field="kind"):
    """The role of ``at`` stops when it passes ``at``, or the role ``to``; the lane continues it ``seconds`` later.

    Without ``seconds`` it is continued when faults are healed: when the workload is over, when the client program has
    ended, or when all that is not stopped sleeps for ever. The roles of ``also`` are stopped and continued together
    with it. They follow it by a few milliseconds: the thread that passes ``at`` tells the lane and is stopped at once,
    so that its own instant is exact, and the lane, when it hears of it, stops the others. The time runs from when all
    of them are seen to be stopped, so that no SIGCONT can come before its SIGSTOP.
    """

    seconds: float | None = None
    also: tuple[str, ...] = ()

    @property
    def roles(self) -> tuple[str, ...]:
        """All that are stopped, the victim first."""
        return (self.victim, *self.also)

    @property
    def cost(self) -> float:
        return math.inf if self.seconds is None else self.seconds

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        if self.seconds is not None and not 0 < self.seconds <= 600:
            return f"seconds: {self.seconds} is outside 0..600"
        if len({*self.roles}) < len(self.roles):
            return f"also: {', '.join(self.also)} names {self.victim} again or a role twice"
        return None

    def strike(self, hand: Hand) -> None:
        if self.remote:
            self.ask_lane(hand)
            return
        hand.fired()
        hand.waits()
        hand.tell_lane()
        # To this very thread: a signal to the process might let it run on until another thread has taken it.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        hand.runs()
        hand.over()

    def __str__(self) -> str:
        how = "until faults are healed" if self.seconds is None else f"for {self.seconds:g} s"
        return f"stop {', '.join(self.roles)} at {self.at} {how}"
