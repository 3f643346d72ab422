"""The other processes of the proxy benchmark, each a program of its own.

`python -m harness.bench.carriers echo ADDRESS` binds a PAIR and sends every frame back; after a frame `count N` it
takes the next N in silence and then says `done`. An empty frame ends it.

`python -m harness.bench.carriers forward LISTEN UPSTREAM` is the least that a proxy in Python can be: it copies bytes
of one connection between Unix sockets, up to 64 KiB at a time, and knows nothing of what they say. It ends with either
side.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import subprocess
import sys

import zmq

from harness.interpreter import python

COUNT = b"count "
DONE = b"done"
CHUNK = 64 * 1024
"""Bytes of one read."""


def start(*arguments: str) -> subprocess.Popen[bytes]:
    """The program with these arguments."""
    return subprocess.Popen(python("harness.bench.carriers", *arguments))


def _echo(address: str) -> None:
    with zmq.Context() as context, context.socket(zmq.PAIR) as sock:
        sock.set_hwm(0)
        sock.bind(address)
        while frame := sock.recv():
            if not frame.startswith(COUNT):
                sock.send(frame)
                continue
            for _ in range(int(frame.removeprefix(COUNT))):
                sock.recv()
            sock.send(DONE)


class _Pipe:
    """One direction: what was read from `source` and is still to be written to `sink`."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source, self.sink = source, sink
        self.unsent = bytearray()
        self.ended = False

    def read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = self.source.recv(CHUNK)
            if data:
                self.unsent += data
                self.write()
            else:
                self.ended = True
                self.sink.shutdown(socket.SHUT_WR)

    def write(self) -> None:
        with contextlib.suppress(BlockingIOError):
            del self.unsent[: self.sink.send(self.unsent)]


def _forward(listen: str, upstream: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        listener.bind(listen)
        listener.listen()
        near, _ = listener.accept()
        with near, socket.socket(socket.AF_UNIX) as far:
            far.connect(upstream)
            out, back = _Pipe(near, far), _Pipe(far, near)
            ends = ((near, out, back), (far, back, out))  # each with what is read from it, and what is written to it
            for sock, _, _ in ends:
                sock.setblocking(False)
                selector.register(sock, selectors.EVENT_READ)
            while not (out.ended or back.ended):
                for key, mask in selector.select():
                    _, reads, writes = ends[key.fileobj is far]
                    if mask & selectors.EVENT_READ:
                        reads.read()
                    if mask & selectors.EVENT_WRITE:
                        writes.write()
                for sock, reads, writes in ends:
                    # Nothing is read while what was read before waits, so that back pressure is felt.
                    wanted = (0 if reads.unsent else selectors.EVENT_READ) | (
                        selectors.EVENT_WRITE if writes.unsent else 0
                    )
                    if wanted and wanted != selector.get_key(sock).events:
                        selector.modify(sock, wanted)


def main(arguments: list[str]) -> None:
    """Runs one of the two programs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the benchmark's business, which ends this process too
    if arguments[0] == "echo":
        _echo(arguments[1])
    else:
        _forward(arguments[1], arguments[2])


if __name__ == "__main__":
    main(sys.argv[1:])
