"""One PUSH/PULL pair per rank. The default strategy: it loses nothing.

There is no subscription that could come late, and a full queue makes rank 0 wait instead of dropping frames. Rank 0
binds one PUSH for each other rank, at link `relay.K`. A rank whose queue is full holds up nobody's frame but its own:
the others get theirs first, then rank 0 waits for the slow one until the step's deadline, and names it.
"""

from __future__ import annotations

import msgspec
import zmq

from engine import relay
from engine.clock import Deadline, now
from engine.errors import DeadlineExceeded
from engine.relay import frames
from engine.relay.frames import FrameKind
from engine.relay.numbered import NumberedRelay


class _Lane:
    """Rank 0's way to one rank. `number` is the next frame's."""

    def __init__(self, socket: zmq.Socket[bytes], rank: int) -> None:
        self.socket = socket
        self.rank = rank
        self.number = 0

    def offer(self, kind: FrameKind, epoch: int, payload: msgspec.Struct | None) -> bool:
        """Send if the queue has room; whether it had."""
        try:
            self.socket.send(frames.encode(kind, epoch, self.number, payload), zmq.DONTWAIT)
        except zmq.Again:
            return False
        self.number += 1
        return True


@relay.register("pushpull")
class PushPullRelay(NumberedRelay):
    """One rank's end of the push-pull strategy."""

    def __init__(self, seat: relay.RelaySeat) -> None:
        super().__init__(seat)
        ranks = range(1, seat.size) if seat.rank == 0 else (seat.rank,)
        self._lanes = [_Lane(seat.context.socket(zmq.PUSH if seat.rank == 0 else zmq.PULL), rank) for rank in ranks]
        for lane in self._lanes:
            lane.socket.set_hwm(seat.high_water)

    @property
    def socket(self) -> zmq.Socket[bytes]:
        return self._lanes[0].socket

    def open(self) -> None:
        for lane in self._lanes:
            lane.socket.bind(self._seat.address(f"relay.{lane.rank}"))

    def connect(self) -> None:
        self.socket.connect(self._seat.address(f"relay.{self._seat.rank}"))

    def close(self) -> None:
        for lane in self._lanes:
            lane.socket.close(linger=self._linger)

    def _publish(self, kind: FrameKind, payload: msgspec.Struct | None, deadline: Deadline) -> None:
        began = now()
        full = self._lanes
        while full := [lane for lane in full if not lane.offer(kind, self._seat.epoch, payload)]:
            sockets = [lane.socket for lane in full]
            if not self._seat.lifeline.wait(sockets, deadline, flag=zmq.POLLOUT, stop=False):
                ranks = [lane.rank for lane in full]
                raise DeadlineExceeded(
                    self._seat.roles[ranks[0]],
                    f"relay: {self._names(ranks)} did not take frame {kind.name} {full[0].number} "
                    f"in {now() - began:.2f} s: the queue is full",
                )

    def _say_last(self, kind: FrameKind, payload: msgspec.Struct | None) -> None:
        for lane in self._lanes:
            lane.offer(kind, self._seat.epoch, payload)
