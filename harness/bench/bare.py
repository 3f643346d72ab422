"""What the client is measured beside: bare ZMQ sockets and msgpack, with no engine and no client around them.

`python -m harness.bench.bare ADDRESS` is the other end, a process with an asyncio PUSH: each line on its standard input
is a :class:`harness.bench.streams.Batch` in JSON, and it sends the messages that an echo engine answers such a batch
with, encoded by `msgspec.msgpack`, equal to the last byte; at the checksums nobody here looks. It ends with its
standard input.
"""

from __future__ import annotations

import asyncio
import queue
import signal
import subprocess
import sys
import threading
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from engine.codec import CHECKSUM_BYTES, packed
from engine.messages import Outputs
from harness.bench import BenchError
from harness.bench.streams import Batch, Tally, Turns
from harness.interpreter import python

LIMIT = 60.0
"""Seconds without an end of a batch, or without a message, after which there is nothing to measure."""


class Sender:
    """The process at the other end of `address`."""

    def __init__(self, address: str) -> None:
        self.process = subprocess.Popen(python("harness.bench.bare", address), stdin=subprocess.PIPE, bufsize=0)

    def send(self, batch: Batch) -> None:
        """Have the messages of a batch sent. Raises BenchError if the process has ended."""
        try:
            if self.process.stdin is not None:
                self.process.stdin.write(msgspec.json.encode(batch) + b"\n")
        except OSError as error:
            raise BenchError(f"client: the bare sender has ended: {error}") from error

    def close(self) -> None:
        """End the process; safe to call twice."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait()


class Floor:
    """One asyncio PULL: ``await socket.recv_multipart()`` for each message, decode, count."""

    def __init__(self, address: str) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = _bound(self._context, address)
        self._decoder = msgspec.msgpack.Decoder(Outputs)
        self.sender = Sender(address)

    async def read(self, batch: Batch) -> Tally:
        """One batch, from the sender's start to the last message. Raises BenchError if it does not come."""
        tally = Tally(batch)
        self.sender.send(batch)
        try:
            async with asyncio.timeout(LIMIT):
                while not tally.done:
                    frames = await self._socket.recv_multipart()
                    tally.count(self._decoder.decode(frames[0][:-CHECKSUM_BYTES]))
        except TimeoutError:
            raise BenchError(f"client: the bare sockets did not carry the messages within {LIMIT:g} s") from None
        return tally

    def close(self) -> None:
        self.sender.close()
        self._context.destroy(linger=0)


class ThreadAndQueue:
    """The same for a thread that receives and decodes, and a `queue.Queue` from which an asyncio program reads.

    The thread blocks in ``recv_multipart()``. The reader takes what is in the queue at once; only for an empty one it
    waits, in a thread of the loop's pool, since nothing else can wait for such a queue without blocking the loop.
    """

    def __init__(self, address: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = _bound(self._context, address)
        self._queue: queue.Queue[Outputs] = queue.Queue()
        self._thread = threading.Thread(target=self._receive, name="bench-receiver", daemon=True)
        self._thread.start()
        self.sender = Sender(address)

    async def read(self, batch: Batch) -> Tally:
        """As of :class:`Floor`."""
        tally = Tally(batch)
        self.sender.send(batch)
        while not tally.done:
            tally.count(await self._get())
        return tally

    def close(self) -> None:
        self.sender.close()
        self._context.term()  # ends the thread's wait
        self._thread.join()

    def _receive(self) -> None:
        decoder = msgspec.msgpack.Decoder(Outputs)
        with self._socket:
            while True:
                try:
                    frames = self._socket.recv_multipart()
                except zmq.ContextTerminated:
                    return
                self._queue.put(decoder.decode(frames[0][:-CHECKSUM_BYTES]))

    async def _get(self) -> Outputs:
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            pass
        try:
            return await asyncio.get_running_loop().run_in_executor(None, self._queue.get, True, LIMIT)
        except queue.Empty:
            raise BenchError(f"client: no message came to the receiver thread within {LIMIT:g} s") from None


def _bound(context: zmq.Context[Any], address: str) -> Any:
    """A PULL without limits, as the client's own is."""
    socket = context.socket(zmq.PULL)
    socket.set_hwm(0)
    socket.bind(address)
    return socket


async def _send(address: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the benchmark's business, which ends this process too
    socket = zmq.asyncio.Context.instance().socket(zmq.PUSH)
    socket.set_hwm(0)
    socket.connect(address)
    number = 0
    for line in sys.stdin.buffer:  # nothing else runs on this loop
        turns = Turns()
        for request in msgspec.json.decode(line, type=Batch).requests():
            turns.add(request)
        while turns:
            number += 1
            await socket.send_multipart([packed(Outputs(number, 0, [turns.take()[1]]))])
    socket.close(linger=0)


if __name__ == "__main__":
    asyncio.run(_send(sys.argv[1]))
