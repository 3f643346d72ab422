"""Rank 0's sockets to its clients: messages in, outputs out, two links and two counts for each client.

What one client sends is taken in order, and no client waits for another's burst. A request or call that cannot be read
is answered as long as it says whose answer that would be; what says not even that is the end of the engine, because a
message would be lost without anybody's knowing.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq

from engine.clock import Deadline
from engine.codec import Decoder, Encoder, packed, unsealed
from engine.core import Message, StepResult
from engine.errors import InputError
from engine.lifeline import Lifeline
from engine.messages import (
    ENGINE_CORE_DEAD,
    Abort,
    Add,
    ErrorKind,
    FinishReason,
    Init,
    MessageType,
    Outputs,
    RequestOutput,
    SchedulerStats,
    Utility,
    UtilityOutput,
    Welcome,
    client_link,
    engine_identity,
)
from engine.sockets import readable
from engine.utilities import failed

OUTPUT_LINGER = 1000
"""Milliseconds for the last outputs to leave the process."""

TAKE_BYTES = 4 << 20
"""Bytes of messages that one iteration takes, so that a burst does not become one giant step frame."""

_DECODERS: dict[bytes, Decoder[Add] | Decoder[Abort] | Decoder[Utility]] = {
    MessageType.ADD.value: Decoder(Add),
    MessageType.ABORT.value: Decoder(Abort),
    MessageType.UTILITY.value: Decoder(Utility),
}

_INLINE = Encoder(None)


class _Named(msgspec.Struct, array_like=True):
    request_id: str


class _LooseAdd(msgspec.Struct, array_like=True):
    """An ADD of which no more is asked than whose answer it would have."""

    number: int
    request: _Named
    client_index: Any = None


class _LooseUtility(msgspec.Struct, array_like=True):
    """The same of a UTILITY."""

    number: int
    client_index: Any
    call_id: int
    method: Any = None


_UNREADABLE = (msgspec.MsgspecError, RecursionError)


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message on its way to the ranks: its type byte, its body and aux frames, and what they say."""

    kind: bytes
    frames: Sequence[bytes]
    message: Message

    @classmethod
    def abort(cls, request_ids: list[str], client_index: int) -> Incoming:
        """What rank 0 itself puts in for a client that has left: an ABORT that no client has numbered."""
        message = Abort(0, request_ids, client_index)
        return cls(MessageType.ABORT.value, [packed(message)], message)

    @property
    def size(self) -> int:
        """Bytes of all frames."""
        return sum(map(len, self.frames))

    @property
    def raw(self) -> bytes:
        """The message as the relay carries it: the type byte and one body, with the arrays in it."""
        body = self.frames[0] if len(self.frames) == 1 else bytes(_INLINE.encode(self.message)[0])
        return self.kind + body


class Port:
    """One client's DEALER and PUSH. `taken` and `sent` are the numbers of the last messages on them.

    `waiting` has come in and is for a later iteration; `aborts` are those of it that abort something. Up to message
    `said` the client had spoken when a stop was ordered.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], engine_index: int, client_index: int) -> None:
        self.client_index = client_index
        self.taken = 0
        self.sent = 0
        self.said = 0
        self.gone = False
        self.waiting: deque[Incoming] = deque()
        self.aborts: deque[Abort] = deque()
        self._engine_index = engine_index
        self._closing = ""
        self._encoder = Encoder()
        self.input = context.socket(zmq.DEALER)
        self.input.identity = engine_identity(engine_index)
        self.output = context.socket(zmq.PUSH)
        for socket in (self.input, self.output):
            socket.set_hwm(0)

    def connect(self, input_address: str, output_address: str, welcome: Welcome) -> None:
        """Connect both, and greet the client over `input` so that it knows this engine's identity."""
        self.input.connect(input_address)
        self.output.connect(output_address)
        self.input.send(packed(welcome))

    def receive(self) -> None:
        """Take in what has come. Raises :class:`InputError` for a message that is not the next one."""
        while not self.gone and readable(self.input):
            kind, *frames = self.input.recv_multipart()
            if not frames:
                raise InputError(f"{self._link} message of one frame, expected a type byte and a body")
            self._take_in(kind, frames)

    def pop(self) -> Incoming:
        """The first of what is waiting."""
        incoming = self.waiting.popleft()
        if isinstance(incoming.message, Abort):
            self.aborts.popleft()
        return incoming

    def send(
        self,
        outputs: list[RequestOutput],
        utility: UtilityOutput | None = None,
        stats: SchedulerStats | None = None,
    ) -> None:
        """Send one record. A reply whose result cannot be sent becomes one that says so."""
        if self.gone:
            return
        record = Outputs(self.sent + 1, self._engine_index, outputs, utility, stats)
        try:
            frames = self._encoder.encode(record)
        except (TypeError, ValueError, OverflowError) as error:
            if utility is None:
                raise
            failure = UtilityOutput(utility.call_id, f"the result cannot be sent: {error}")
            frames = self._encoder.encode(msgspec.structs.replace(record, utility=failure))
        self.sent += 1
        # Copied: an array that a result shows may change before the socket has let it go.
        self.output.send_multipart(frames)

    @property
    def expecting(self) -> bool:
        """Whether something that was said in time has still to come."""
        return not self.gone and self.taken < self.said

    def refuse(self, why: str, *, waiting: bool) -> None:
        """From now on, answer every request and call at once, with `why`, but not what was said in time.

        If `waiting`, that too, and those that were not yet taken.
        """
        self._closing = why
        if waiting:
            self.said = 0
            unserved, self.waiting, self.aborts = self.waiting, deque(), deque()
            for incoming in unserved:
                self._answer(incoming.message)

    def drop(self) -> None:
        """The client has left: nothing goes to it any more, and what it sent last is nobody's wish."""
        self.gone = True
        self.waiting.clear()
        self.aborts.clear()
        self.close(nobody_reads=True)

    def close(self, *, nobody_reads: bool) -> None:
        self.input.close(linger=0)
        self.output.close(linger=0 if nobody_reads else OUTPUT_LINGER)

    @property
    def _link(self) -> str:
        return client_link("input", self.client_index)

    def _take_in(self, kind: bytes, frames: list[bytes]) -> None:
        decoder = _DECODERS.get(kind)
        if decoder is None:
            raise InputError(f"{self._link} message of unknown type {kind.hex() or 'nothing'}")
        try:
            message = decoder.decode(frames)
        except _UNREADABLE as error:
            self._answer_unreadable(kind, frames[0], error)
            return
        self._count(message.number, message.client_index)
        if self._closing and message.number > self.said and not isinstance(message, Abort):
            self._answer(message)
            return
        self.waiting.append(Incoming(kind, frames, message))
        if isinstance(message, Abort):
            self.aborts.append(message)

    def _count(self, number: int, client_index: object) -> None:
        """The next message has come. `client_index` is whose it says that it is, if it says so."""
        if type(client_index) is int and client_index != self.client_index:
            raise InputError(
                f"{self._link} message {number} says client {client_index}, expected client {self.client_index}"
            )
        if number != self.taken + 1:
            raise InputError(f"{self._link} message {number} after {self.taken}, expected {self.taken + 1}")
        self.taken = number

    def _answer(self, message: Message) -> None:
        """The engine is closing."""
        if isinstance(message, Add):
            self.send([RequestOutput(message.request.request_id, [], FinishReason.ABORT, self._closing)])
        elif isinstance(message, Utility):
            self.send([], UtilityOutput(message.call_id, failed(message.method, self._closing)))

    def _answer_unreadable(self, kind: bytes, body: bytes, error: Exception) -> None:
        try:
            if kind == MessageType.ADD.value:
                add = msgspec.msgpack.decode(unsealed(body), type=_LooseAdd)
                self._count(add.number, add.client_index)
                text = f"the request cannot be read: {error}"
                self.send([RequestOutput(add.request.request_id, [], FinishReason.ERROR, text, ErrorKind.INVALID)])
                return
            if kind == MessageType.UTILITY.value:
                call = msgspec.msgpack.decode(unsealed(body), type=_LooseUtility)
                self._count(call.number, call.client_index)
                method = call.method if isinstance(call.method, str) else "unknown"
                self.send([], UtilityOutput(call.call_id, failed(method, f"the call cannot be read: {error}")))
                return
        except _UNREADABLE:
            pass  # the first error says more
        raise InputError(f"{self._link} message of type {kind.hex()} cannot be read: {error}") from error


class Ports:
    """The ports of all clients."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        engine_index: int,
        lifeline: Lifeline,
        client_count: int = 1,
    ) -> None:
        self._lifeline = lifeline
        self._ports = [Port(context, engine_index, client_index) for client_index in range(client_count)]
        self._turns = deque(self._ports)

    def connect(self, init: Init, welcome: Welcome) -> None:
        """Connect to every client and greet it."""
        for port, input_address, output_address in zip(self._ports, init.inputs, init.outputs, strict=True):
            own = msgspec.structs.replace(welcome, client_index=port.client_index)
            port.connect(input_address, output_address, own)

    def take(self, *, block: bool) -> list[Incoming]:
        """The messages for one iteration; if `block`, wait for the first without a deadline.

        They are at most :data:`TAKE_BYTES` in all, or one single message, a client's turn each; what is left is for the
        next iteration. There may be none after a wait: all were answered here, or a client has left.

        Raises what the lifeline says while waiting, and :class:`InputError` for a message that is not the next one.
        """
        if block and not self.waiting:
            sockets = [port.input for port in self._ports if not port.gone]
            self._lifeline.wait(sockets, Deadline.never(), departures=True)
        self._receive()
        taken: list[Incoming] = []
        size = passed = 0
        while passed < len(self._turns):
            port = self._turns[0]
            if port.waiting:
                # Whose message is left for the next iteration has the first turn in it.
                if taken and size + port.waiting[0].size > TAKE_BYTES:
                    break
                taken.append(port.pop())
                size += taken[-1].size
                passed = 0
            else:
                passed += 1
            self._turns.rotate(-1)
        return taken

    @property
    def waiting(self) -> bool:
        """Whether something has come in that was not taken yet."""
        return any(port.waiting for port in self._ports)

    @property
    def numbers(self) -> list[tuple[int, int]]:
        """For each client the numbers of the last message from it and of the last one sent to it."""
        return [(port.taken, port.sent) for port in self._ports]

    def late_aborts(self) -> frozenset[tuple[int, str]]:
        """Client index and request id of the aborts that have come in and were not taken yet; they stay to be taken.

        A best effort: it covers what has been received by now, including what waits behind a full iteration.
        """
        self._receive()
        aborts = [abort for port in self._ports for abort in port.aborts]
        return frozenset((abort.client_index, request_id) for abort in aborts for request_id in abort.request_ids)

    def send(self, result: StepResult) -> None:
        """Send what a step has to tell: a record to each client that has outputs, then one for each reply.

        How full the engine is goes along, and alone to a client without outputs; but not to a further client that has
        never said anything: it may not be there to read it.
        """
        for port in self._ports:
            outputs = result.outputs.get(port.client_index, [])
            if outputs or (result.stats is not None and (port.taken or not port.client_index)):
                port.send(outputs, stats=result.stats)
        for client_index, reply in result.replies:
            self._ports[client_index].send([], reply)

    def expect(self, said: int) -> None:
        """A stop was ordered: up to message `said` what client 0 sends is in time."""
        self._ports[0].said = said

    @property
    def expecting(self) -> bool:
        """Whether something that was said in time has still to come."""
        return any(port.expecting for port in self._ports)

    def await_expected(self, deadline: Deadline) -> None:
        """Wait for what was said in time. Raises what the lifeline says while waiting, and :class:`InputError`."""
        while self.expecting:
            sockets = [port.input for port in self._ports if port.expecting]
            if not self._lifeline.wait(sockets, deadline, stop=False):
                return
            self._receive()

    def refuse(self, why: str, *, waiting: bool) -> None:
        """From now on, answer every request and call at once, with `why`: it comes too late. Aborts still count.

        What has come by now, or was said in time, is still to be taken, unless `waiting`: then it is answered too.
        """
        self._receive()
        for port in self._ports:
            port.refuse(why, waiting=waiting)

    def drop(self, client_index: int) -> None:
        """That client has left: forget what it sent and was not taken, and send it nothing more."""
        self._ports[client_index].drop()

    def send_dead(self) -> None:
        """Send the dead frame to every client, behind all outputs. One that cannot be told keeps no other from it."""
        for port in self._ports:
            with contextlib.suppress(zmq.ZMQError):
                if not port.gone:
                    port.output.send(ENGINE_CORE_DEAD)

    def close(self, *, nobody_reads: bool = False) -> None:
        """Close all. Outputs that were sent still leave, within a bound, unless nobody is left to read them."""
        for port in self._ports:
            port.close(nobody_reads=nobody_reads or port.gone)

    def _receive(self) -> None:
        for port in self._ports:
            port.receive()
