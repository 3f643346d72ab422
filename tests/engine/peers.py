"""One client's end of rank 0's ports: the sockets and numbers alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from engine.codec import Array, Decoder, Encoder, unsealed
from engine.messages import (
    Abort,
    Add,
    MessageType,
    Outputs,
    Request,
    SamplingParams,
    Utility,
    Welcome,
    client_link,
    engine_identity,
)

PATIENCE = 5000
"""Milliseconds for a message within one machine."""


class Peer:
    """A client of that index. `address` gives the address of a link by its name."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], client_index: int, address: Callable[[str], str]
    ) -> None:
        self.index = client_index
        self.count = 0
        self.input = context.socket(zmq.ROUTER)
        self.output = context.socket(zmq.PULL)
        self.addresses = [address(client_link(link, client_index)) for link in ("input", "output")]
        for socket, own in zip((self.input, self.output), self.addresses, strict=True):
            socket.set_hwm(0)
            socket.linger = 0
            socket.bind(own)
        self._encoder = Encoder()

    def welcomed(self) -> Welcome:
        """The welcome, which must come now."""
        assert self.input.poll(PATIENCE)
        identity, body = self.input.recv_multipart()
        assert identity == engine_identity(0)
        return msgspec.msgpack.decode(unsealed(body), type=Welcome)

    # ---- what it sends ----

    def add(self, request: Request) -> None:
        self.send(MessageType.ADD, Add(self.count + 1, request, self.index))

    def ask(self, request_id: str, prompt: list[int], max_tokens: int) -> None:
        """Add a request for tokens."""
        self.add(Request(request_id, prompt, SamplingParams(max_tokens)))

    def weigh(self, size: int) -> None:
        """Add a request of about `size` bytes, named after its number."""
        embeds = Array("uint8", (size,), bytes(size))
        self.add(Request(f"r{self.count + 1}", [], SamplingParams(1), embeds))

    def abort(self, *ids: str) -> None:
        self.send(MessageType.ABORT, Abort(self.count + 1, list(ids), self.index))

    def call(self, call_id: int, method: str = "step_counters", *args: Any) -> None:
        self.send(MessageType.UTILITY, Utility(self.count + 1, self.index, call_id, method, list(args)))

    def send(self, kind: MessageType, body: object) -> None:
        self.send_frames(kind.value, *self._encoder.encode(body))

    def send_frames(self, *frames: bytes | memoryview) -> None:
        """The next message, whatever it is."""
        self.count += 1
        self.input.send_multipart([engine_identity(0), *frames])

    # ---- what it reads ----

    def read(self) -> Outputs:
        """The next record on `output`."""
        return self.decoded(self.read_frames())

    def decoded(self, frames: list[bytes]) -> Outputs:
        return Decoder(Outputs).decode(frames)

    def read_frames(self) -> list[bytes]:
        assert self.output.poll(PATIENCE), "nothing came"
        return self.output.recv_multipart()
