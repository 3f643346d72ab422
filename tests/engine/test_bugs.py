"""The seeded bugs are there, and are what their docstrings say."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from engine.messages import MessageType
from engine.model import reference
from engine.relay.frames import FrameKind
from scenarios.bugs.connected import ConnectedRelay
from scenarios.bugs.unsynchronised_deadline import UnsynchronisedDeadlineRelay
from tests.engine import wires
from tests.engine.forks import ForkFactory, replace

BUGS = ("connected", "unsynchronised-deadline")


def patient(size: int) -> wires.Before:
    """Rank 0 publishes nothing before every rank has subscribed, which the bugs leave to luck."""

    def before(role: str) -> None:
        if role == "dp0.rank0":
            make: Callable[..., zmq.Socket[bytes]] = zmq.Context.socket
            whole = zmq.Socket.send

            def socket(self: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
                made = make(self, zmq.XPUB if kind == zmq.PUB else kind)
                if kind == zmq.PUB:
                    made.setsockopt(zmq.XPUB_VERBOSE, 1)
                return made

            def send(self: zmq.Socket[bytes], *args: object, **options: object) -> object:
                while self.socket_type == zmq.XPUB and len(subscriptions) < size - 1:
                    subscriptions.append(self.recv())
                return whole(self, *args, **options)  # type: ignore[call-overload]

            subscriptions: list[bytes] = []
            replace(zmq.Context, "socket", socket)
            replace(zmq.Socket, "send", send)

    return before


@pytest.mark.parametrize("name", BUGS)
@pytest.mark.parametrize("size", [2, 3])
def test_a_bug_that_nothing_provokes_serves(name: str, size: int) -> None:
    tokens = asyncio.run(wires.first_tokens(ForkFactory(patient(size)), size, relay=name))
    assert tokens == reference.greedy("tiny", [1, 2, 3], 4)


def deaf_until(path: Path, owner: type[ConnectedRelay] | type[UnsynchronisedDeadlineRelay]) -> wires.Before:
    """Rank 1's subscription arrives once `path` is there."""

    def before(role: str) -> None:
        if role == "dp0.rank1":
            follow = owner.follow

            def late(self: ConnectedRelay, *, idle: bool) -> list[bytes]:
                if not subscribed:
                    subscribed.append(True)
                    wires.await_path(path)
                    whole(self._socket, b"")
                return follow(self, idle=idle)  # type: ignore[arg-type]

            subscribed: list[bool] = []
            whole = zmq.Socket.subscribe
            replace(zmq.Socket, "subscribe", lambda self, topic: None)
            replace(owner, "follow", late)

    return before


@pytest.mark.parametrize("size", [2, 3])
def test_connected_loses_the_first_request_of_a_late_subscriber(size: int, tmp_path: Path) -> None:
    path = tmp_path / "published"

    def mark(role: str) -> None:
        if role == "dp0.rank0":
            whole = ConnectedRelay._publish

            def publish(self: ConnectedRelay, kind: FrameKind, *rest: object) -> None:
                whole(self, kind, *rest)  # type: ignore[arg-type]
                path.touch()

            replace(ConnectedRelay, "_publish", publish)

    factory = ForkFactory(wires.all_of(mark, deaf_until(path, ConnectedRelay)))
    error = asyncio.run(wires.death(factory, size, relay="connected"))
    assert error.culprit == "dp0.rank1"
    assert "FAIL 2 leaves a gap after nothing, expected 1" in error.cause


@pytest.mark.parametrize("size", [2, 3])
def test_the_deadline_of_the_unsynchronised_relay_names_nobody(size: int, tmp_path: Path) -> None:
    path = tmp_path / "published"

    def mark(role: str) -> None:
        if role == "dp0.rank0":
            whole = zmq.Socket.send

            def send(self: zmq.Socket[bytes], data: bytes, *rest: object, **options: object) -> object:
                sent = whole(self, data, *rest, **options)  # type: ignore[call-overload]
                if data[:1] == MessageType.ADD.value:
                    path.touch()
                return sent

            replace(zmq.Socket, "send", send)

    factory = ForkFactory(wires.all_of(mark, deaf_until(path, UnsynchronisedDeadlineRelay)))
    error = asyncio.run(wires.death(factory, size, relay="unsynchronised-deadline"))
    assert error.culprit == ""
    assert "not finished by its deadline" in error.cause
    assert str(error).startswith("engine is dead: nobody is named: ")


def test_no_bug_can_be_met_by_accident() -> None:
    code = "import engine.cli; from engine import relay; print(relay.names())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['handshake', 'pushpull', 'subscribed', 'unsynchronised']"
