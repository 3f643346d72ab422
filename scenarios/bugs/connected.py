"""The relay `connected`: a connection is taken for a subscription.

PUB/SUB with numbered frames, but no hello and no GO: each rank waits until its socket's monitor reports that the ZMTP
handshake has succeeded, and says JOIN. Its SUBSCRIBE is then only on its way. If it is late, rank 0 publishes the first
step to nobody; the lost frame is noticed at the step's deadline, and the first request dies with the engine.

The reasoning is found in real fixes; pyzmq issue 2000 shows that not even a barrier orders the I/O threads.
"""

from __future__ import annotations

from typing import ClassVar

import zmq
from zmq.utils.monitor import recv_monitor_message

from engine import relay
from engine.clock import Deadline
from engine.errors import DeadlineExceeded, RelayError
from engine.relay.frames import FrameKind
from engine.relay.published import PublishedRelay
from harness.seam import bug_canary

BUG = "H6"


@relay.register("connected")
class ConnectedRelay(PublishedRelay):
    """One rank's end of the strategy."""

    opening: ClassVar[tuple[FrameKind, ...]] = ()

    def __init__(self, seat: relay.RelaySeat) -> None:
        super().__init__(seat)
        self._number = 1
        self._monitor: zmq.Socket[bytes] | None = None

    def connect(self) -> None:
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        super().connect()

    def join(self, startup: Deadline) -> relay.JoinReport:
        until = startup.sooner(Deadline.after(self._seat.handshake_limit))
        if self._monitor is None:
            self._gather(until)
        else:
            if not self._seat.lifeline.wait([self._monitor], until):
                raise DeadlineExceeded(self._seat.roles[0], "join: the relay was not connected before the deadline")
            recv_monitor_message(self._monitor)
            bug_canary.reached(BUG)
            self._seat.control.join()
            self._seat.lifeline.attach(self)
        return relay.JoinReport(self._seat.size - 1, 1)

    def follow(self, *, idle: bool) -> list[bytes]:
        try:
            return super().follow(idle=idle)
        except (RelayError, DeadlineExceeded):
            # What was sent before the subscription had come is missing.
            bug_canary.triggered(BUG)
            raise

    def close(self) -> None:
        if self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
        super().close()
