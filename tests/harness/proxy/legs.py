"""One leg through a real proxy with real sockets at both ends: what the tests of the proxy share."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from harness.proxy import Connected, FrameRule, Leg, Proxy, Seen, Status

LIMIT = 10.0  # seconds to wait for what must come
Sock = zmq.Socket[bytes]


def until(true: Callable[[], object], what: str) -> None:
    give_up = time.monotonic() + LIMIT
    while not true():
        if time.monotonic() > give_up:
            pytest.fail(f"waited {LIMIT} s for {what}")
        time.sleep(0.001)


class Link:
    """One leg through the proxy, sockets at both ends, and what the ledger says of them."""

    def __init__(self, proxy: Proxy, folder: Path, tcp: bool = False) -> None:
        self.proxy = proxy
        self.up = f"ipc://{folder}/up"
        self.listen = "tcp://127.0.0.1:0" if tcp else f"ipc://{folder}/listen"
        self.context: zmq.Context[Sock] = zmq.Context()
        self._tcp = tcp

    def begin(self, *rules: FrameRule) -> None:
        if self._tcp and self.up.startswith("ipc"):
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.up = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        leg = Leg("relay", "dp0.rank1", "dp0.rank0", self.listen, self.up)
        (self.listen,) = self.proxy.begin([leg], rules, "relay_kinds:classify", "relay_kinds:foreign")

    def socket(self, kind: int) -> Sock:
        made = self.context.socket(kind)
        made.set(zmq.RCVTIMEO, int(LIMIT * 1000))
        made.set(zmq.SNDTIMEO, int(LIMIT * 1000))
        made.set(zmq.LINGER, 0)
        return made

    def pair(self, binder: int, connector: int) -> tuple[Sock, Sock]:
        bound, connected = self.socket(binder), self.socket(connector)
        bound.bind(self.up)
        connected.connect(self.listen)
        return bound, connected

    def seen(self, kind: str | None = None, fate: str | None = None) -> list[Seen]:
        records = self.proxy.ledger().records
        return [r for r in records if isinstance(r, Seen) and kind in (None, r.kind) and fate in (None, r.fate)]

    def fates(self, direction: str) -> list[tuple[str, int | None, str]]:
        """Kind, number and fate of every message that went in `direction`."""
        return [(s.kind, s.number, s.fate) for s in self.seen() if s.direction == direction and not s.kind.isupper()]

    def quiet(self) -> Status:
        until(lambda: self.proxy.status().quiet, "a quiet proxy")
        return self.proxy.status()

    def counts(self, index: int) -> tuple[int, int, int]:
        (count,) = [c for c in self.proxy.status().rules if c.index == index]
        return count.armed, count.reached, count.fired


def rule(action: str = "hold", kind: str = "step", index: int = 1, **settings: object) -> FrameRule:
    return FrameRule(index, action, "relay", "dp0.rank1", kind, **settings)  # type: ignore[arg-type]


both = pytest.mark.parametrize("link", [False, True], ids=["ipc", "tcp"], indirect=True)
PAYLOADS = [
    [b""],
    [b"a", b"", bytes(255), bytes(256)],
    [os.urandom(1 << 20), b"end"],
    *[[b"%d" % n] for n in range(500)],
]


def events(link: Link, event: str | None = None) -> list[Connected]:
    return [r for r in link.proxy.ledger().records if isinstance(r, Connected) and event in (None, r.event)]


class Raw:
    """Plain unix sockets at both ends of the leg."""

    def __init__(self, link: Link) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(link.up.removeprefix("ipc://"))
        self.listener.listen()
        self.connector = socket.socket(socket.AF_UNIX)
        self.connector.connect(link.listen.removeprefix("ipc://"))
        self.binder, _ = self.listener.accept()
        for sock in (self.connector, self.binder):
            sock.settimeout(LIMIT)

    def close(self) -> None:
        for sock in (self.listener, self.connector, self.binder):
            sock.close()


def exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = sock.recv(size - len(data))
        assert chunk, "ended early"
        data += chunk
    return data
