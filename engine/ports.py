"""Rank 0's two sockets to the client: requests in, outputs out."""

from __future__ import annotations

from collections import deque

import msgspec
import zmq

from engine.clock import Deadline
from engine.core import read_message
from engine.endpoints import Endpoints
from engine.errors import InputError
from engine.lifeline import Lifeline
from engine.messages import ENGINE_CORE_DEAD, Abort, Hello, Outputs, RequestOutput, engine_identity
from engine.sockets import readable

OUTPUT_LINGER = 1000
"""Milliseconds for the last outputs to leave the process."""

TAKE_BYTES = 4 << 20
"""Bytes of messages that one iteration takes, so that a burst does not become one giant step frame."""


class Ports:
    """The DEALER that takes requests and the PUSH that sends outputs, both numbered."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], engine_index: int, lifeline: Lifeline) -> None:
        self._engine_index = engine_index
        self._lifeline = lifeline
        self._taken = 0
        self._sent = 0
        self._early: deque[bytes] = deque()
        self._aborts: deque[Abort] = deque()
        self._input = context.socket(zmq.DEALER)
        self._input.identity = engine_identity(engine_index)
        self._output = context.socket(zmq.PUSH)
        for socket in (self._input, self._output):
            socket.set_hwm(0)

    def connect(self, endpoints: Endpoints, epoch: int) -> None:
        """Connect both, and greet the client over `input` so that it knows this engine's identity."""
        self._input.connect(endpoints.address("input"))
        self._output.connect(endpoints.address("output"))
        self._input.send(msgspec.msgpack.encode(Hello(epoch, self._engine_index)))

    def take(self, *, block: bool) -> list[bytes]:
        """The raw request messages for one iteration; if `block`, wait for the first without a deadline.

        They are at most :data:`TAKE_BYTES` in all, or one single message; what is left is for the next iteration.
        Raises what the lifeline says while waiting, and :class:`InputError` for a message that is not the next one.
        """
        if block and not self._early:
            self._lifeline.wait([self._input], Deadline.never())
        self._drain()
        raws: list[bytes] = []
        size = 0
        while self._early and (not raws or size + len(self._early[0]) <= TAKE_BYTES):
            raw = self._early.popleft()
            raws.append(raw)
            size += len(raw)
        first_left = self._taken - len(self._early) + 1
        while self._aborts and self._aborts[0].number < first_left:
            self._aborts.popleft()
        return raws

    @property
    def taken(self) -> int:
        """The number of the last message that has been received from the client."""
        return self._taken

    @property
    def sent(self) -> int:
        """The number of the last message that was sent to the client."""
        return self._sent

    def late_aborts(self) -> frozenset[str]:
        """Ids of the aborts that have come in and were not taken yet; the messages stay for a later :meth:`take`.

        A best effort: it covers what has been received by now, including what waits behind a full iteration.
        """
        self._drain()
        return frozenset(request_id for abort in self._aborts for request_id in abort.request_ids)

    def send(self, outputs: list[RequestOutput]) -> None:
        """Send a step's outputs, if there are any."""
        if outputs:
            self._sent += 1
            self._output.send(msgspec.msgpack.encode(Outputs(self._sent, self._engine_index, outputs)))

    def send_dead(self) -> None:
        """Send the dead frame, behind all outputs."""
        self._output.send(ENGINE_CORE_DEAD)

    def close(self, *, nobody_reads: bool = False) -> None:
        """Close both. Outputs that were sent still leave, within a bound, unless nobody is left to read them."""
        self._input.close(linger=0)
        self._output.close(linger=0 if nobody_reads else OUTPUT_LINGER)

    def _drain(self) -> None:
        while readable(self._input):
            frames = self._input.recv_multipart()
            if len(frames) != 2:
                raise InputError(f"input message of {len(frames)} frames, expected a type byte and a body")
            raw = b"".join(frames)
            message = read_message(raw)
            if message.number != self._taken + 1:
                raise InputError(f"input message {message.number} after {self._taken}, expected {self._taken + 1}")
            self._taken = message.number
            self._early.append(raw)
            if isinstance(message, Abort):
                self._aborts.append(message)
