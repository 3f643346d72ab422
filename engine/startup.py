"""Rank 0's end of the link `startup`: HELLO, INIT and READY, once each.

Rank 0 says who it is before anything else, the launcher answers where the clients are, and rank 0 says that it is ready
when all ranks have joined and every client has been greeted.
"""

from __future__ import annotations

import os

import msgspec
import zmq

from engine.clock import Deadline, now
from engine.codec import packed, unsealed
from engine.config import Launch
from engine.control import config_digest, engine_version
from engine.errors import DeadlineExceeded, HandshakeError
from engine.lifeline import Lifeline
from engine.messages import CLIENT_ROLE, EngineReady, Hello, Init, Startup, engine_identity
from engine.sockets import readable

READY_LINGER = 1000
"""Milliseconds for READY to leave the process."""


class StartupLink:
    """The DEALER that speaks with the launcher until the engine is ready."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], launch: Launch, lifeline: Lifeline) -> None:
        self._launch = launch
        self._lifeline = lifeline
        self._linger = 0
        self._socket = context.socket(zmq.DEALER)
        self._socket.identity = engine_identity(launch.engine_index)

    def hello(self, address: str, deadline: Deadline) -> Init:
        """Say HELLO and return the INIT that answers it.

        Raises :class:`DeadlineExceeded` against the client, :class:`HandshakeError` for an answer that is not of this
        run or does not name every client, or what the lifeline raises.
        """
        launch, began = self._launch, now()
        self._socket.connect(address)
        digest = config_digest(launch)
        self._send(Hello(launch.epoch, launch.engine_index, os.getpid(), engine_version(), digest))
        if not self._lifeline.wait([self._socket], deadline, stop=False):
            raise DeadlineExceeded(CLIENT_ROLE, f"hello: no INIT came in {now() - began:.2f} s")
        return self._init(self._socket.recv_multipart())

    def ready(self) -> None:
        """Say READY, which still leaves the process when the link is closed."""
        if readable(self._socket):
            raise HandshakeError("startup: a second message came after INIT, expected none")
        self._linger = READY_LINGER
        self._send(EngineReady(self._launch.epoch, self._launch.engine_index))

    def close(self) -> None:
        """Close the socket without waiting. Safe to call twice."""
        self._socket.close(linger=self._linger)

    def _init(self, frames: list[bytes]) -> Init:
        if len(frames) != 1:
            raise HandshakeError(f"startup: an answer of {len(frames)} frames, expected one INIT")
        try:
            record: Startup = msgspec.msgpack.decode(unsealed(frames[0]), type=Startup)
        except msgspec.MsgspecError as error:
            raise HandshakeError(f"startup: an answer that cannot be read, expected INIT: {error}") from error
        if not isinstance(record, Init):
            raise HandshakeError(f"startup: {type(record).__name__} came, expected INIT")
        if record.epoch != self._launch.epoch:
            raise HandshakeError(f"startup: INIT of foreign epoch {record.epoch:#x}, expected {self._launch.epoch:#x}")
        count = self._launch.config.client_count
        if (len(record.inputs), len(record.outputs)) != (count, count):
            raise HandshakeError(
                f"startup: INIT names {len(record.inputs)} inputs and {len(record.outputs)} outputs, "
                f"expected {count} (client_count)"
            )
        return record

    def _send(self, record: Hello | EngineReady) -> None:
        self._socket.send(packed(record))
