"""A rank that waits for the relay hears nothing else: a plain receive, and no thread that watches over it.

The handshake of the seed report drains its socket like that, and so do the loops of many engines. A rank in a
collective learns from gloo that a peer has died; a rank that waits for a frame of a dead rank 0 learns nothing, neither
before the first request nor between two, and stays until somebody kills it.
"""

from __future__ import annotations

import threading

from engine.clock import Deadline
from engine.errors import EngineError, StopRequested
from engine.lifeline import Lifeline
from engine.relay.frames import Frame
from engine.relay.numbered import NumberedRelay
from harness.seam import bug_canary

BUG = "H1"


@bug_canary.patch(NumberedRelay, "_next")
def _next(self: NumberedRelay, deadline: Deadline, otherwise: str) -> Frame:
    bug_canary.reached(BUG)
    if self._early:
        return self._early.popleft()
    heard, asked_to_stop = False, False
    try:
        heard = self._seat.lifeline.wait([self.socket], deadline)
    except StopRequested:
        asked_to_stop = True
    except EngineError:
        pass
    if not heard:
        # Here the right wait has come to its end. To a stop rank 0 will bring a frame.
        if not asked_to_stop:
            bug_canary.triggered(BUG)
        self.socket.poll()
    return self._receive()


@bug_canary.patch(Lifeline, "_watch")
def _watch(self: Lifeline) -> None:
    threading.Event().wait()
