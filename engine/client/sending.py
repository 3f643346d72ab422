"""What a client puts on `input`: numbered messages, each handed to the socket as a whole and at once.

The socket has no high-water mark, so a message is never half sent and its number is never lost to somebody's
cancellation. Large arrays travel without a copy: they are the caller's own memory until the socket has let them go,
which is what a :class:`Parcel` tells.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from engine.codec import Decoder, Encoder, prove_sendable
from engine.errors import EngineBusyError, EngineDeadError, EngineGenerateError, UtilityError
from engine.messages import CLIENT_ROLE, Abort, Add, MessageType, Request, Utility, engine_identity, rank_role
from engine.signals import signals_wait

if TYPE_CHECKING:
    from engine.client.resources import Resources

Message = Add | Abort | Utility

Parcel = zmq.MessageTracker
"""Memory on its way: `done` once no frame of the message needs it any more, and `wait` waits for that."""

_TYPES: dict[type[Message], MessageType] = {
    Add: MessageType.ADD,
    Abort: MessageType.ABORT,
    Utility: MessageType.UTILITY,
}


class Outbox:
    """One client's sends to one engine. Not for several threads at once."""

    def __init__(self, resources: Resources, engine_index: int = 0) -> None:
        self._resources = resources
        self._identity = engine_identity(engine_index)
        self._encoder = Encoder()
        self._readers = {kind: Decoder(kind) for kind in _TYPES}
        self._client = resources.client_index

    def add(self, request: Request) -> Parcel | None:
        """Send a request.

        Raises :class:`EngineBusyError` if the engine holds as many requests as it may, :class:`EngineGenerateError` if
        the request's fields are of wrong types or its id is under way, the latched error if the engine is dead.
        """
        self._gate()
        owed, config = self._resources.owed, self._resources.config
        if request.request_id in owed:
            raise EngineGenerateError(f"request id {request.request_id!r} is already under way")
        most = config.max_num_seqs + config.max_waiting
        if len(owed) >= most:
            raise EngineBusyError(f"{most} requests are under way (max_num_seqs and max_waiting), try again later")
        frames = self._encoded(lambda number: Add(number, request, self._client), _unsent_request(request))
        owed.add(request.request_id)
        return self._send(MessageType.ADD, frames)

    def abort(self, request_ids: list[str]) -> None:
        """Ask for the end of requests."""
        self._gate()
        frames = self._encoded(lambda number: Abort(number, request_ids, self._client), _unsent_request(request_ids))
        self._send(MessageType.ABORT, frames)

    def call(self, call_id: int, method: str, args: tuple[Any, ...]) -> Parcel | None:
        """Send a utility call. Raises :class:`UtilityError` for arguments that cannot be sent."""

        def message(number: int) -> Utility:
            return Utility(number, self._client, call_id, method, list(args))

        self._gate()
        try:
            prove_sendable(args)
        except Exception as error:  # also what a value's own methods raise
            raise UtilityError(method, f"call to {method} cannot be sent: {error}") from error
        frames = self._encoded(message, lambda why: UtilityError(method, f"call to {method} cannot be sent: {why}"))
        return self._send(MessageType.UTILITY, frames)

    def _gate(self) -> None:
        """Before anything else is said of a message: raise if the engine takes none any more."""
        self._resources.latch.check_open()

    def _encoded(self, make: Callable[[int], Message], refuse: Callable[[str], Exception]) -> list[Any]:
        """The frames of the message with the next number; what `refuse` makes of the reason is raised."""
        message = make(self._resources.traffic.sent + 1)
        # Read back before it is sent: a message that the engine cannot read would be the end of the engine.
        try:
            frames = self._encoder.encode(message)
            self._readers[type(message)].decode(frames)
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise refuse(str(error)) from error
        return frames

    def _send(self, kind: MessageType, frames: list[Any]) -> Parcel | None:
        socket = self._resources.plain_input
        body, aux = frames[0], [zmq.Frame(memory, copy=False, track=True) for memory in frames[1:]]
        try:
            # All parts at once or, if the engine is not known any more, none: the ROUTER says so at the first.
            socket.send_multipart([self._identity, kind.value, body, *aux], zmq.DONTWAIT)
        except zmq.ZMQError as error:
            raise Unreachable(f"cannot be reached: {error}") from error
        except BaseException as error:
            # A signal's exception, for one. The message has gone or not, so nobody knows the number of the next.
            said = f"a send was broken off by {type(error).__name__}: {error}"
            self._resources.die(EngineDeadError(CLIENT_ROLE, said))
            raise
        self._resources.sent()
        return Parcel(*(frame.tracker for frame in aux)) if aux else None


class Releases:
    """Waits on a thread of its own, named ``engine-sends``, until memory is let go; begun by the first wait."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[Parcel, Callable[[], None]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def wait(self, parcel: Parcel, then: Callable[[], None]) -> None:
        """Call `then`, on that thread, once the parcel is done. One socket lets go in the order of sending."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="engine-sends", daemon=True)
            with signals_wait():  # the thread inherits that
                thread.start()
            self._thread = thread  # only now: one that cannot be started must not be waited for
        self._waiting.put((parcel, then))

    def close(self) -> None:
        """The sockets are closed, which lets everything go: the thread ends once it has told so."""
        self._waiting.put(None)

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            parcel, then = item
            parcel.wait()
            then()


class Unreachable(EngineDeadError):
    """The socket does not take messages for the engine; whoever sends finds out why, or latches this."""

    def __init__(self, cause: str) -> None:
        super().__init__(rank_role(0), cause)

    @classmethod
    def dropped(cls) -> Unreachable:
        """The connection was lost while large arrays were on their way: they are let go, and have not been sent."""
        return cls("the connection to it was lost while something was being sent")


def _unsent_request(what: Request | list[str]) -> Callable[[str], Exception]:
    name = what.request_id if isinstance(what, Request) else what
    return lambda why: EngineGenerateError(f"request {name!r} cannot be sent: {why}")
