"""What a test does to one rank's sockets and waits, inside that rank's process. Each maker returns a `before` hook."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import zmq

from engine import relay
from engine.client.aio import AsyncMPClient
from engine.errors import EngineDeadError, StartupError
from engine.lifeline import Lifeline, Reporter
from engine.llm import AsyncLLM
from engine.messages import FailedReport, Notice, SamplingParams
from engine.ports import Port
from engine.relay import frames
from engine.relay.frames import FrameKind
from tests.engine.forks import ForkFactory, config_for, replace

SAFE = ("handshake", "subscribed", "pushpull")
"""The strategies that promise that nothing is lost without an error."""

Before = Callable[[str], None]
Change = Callable[[bytes], list[bytes]]


def all_of(*hooks: Before) -> Before:
    """All these changes."""

    def before(role: str) -> None:
        for hook in hooks:
            hook(role)

    return before


def sending(kind: FrameKind, number: int, change: Change, link: str = "", role: str = "dp0.rank0") -> Before:
    """`role` sends what `change` makes of that frame, on links that begin with `link`."""

    def before(who: str) -> None:
        if who != role:
            return
        whole = zmq.Socket.send

        def send(self: zmq.Socket[bytes], data: bytes, *rest: object, **options: object) -> object:
            if data[:1] == bytes([frames.MAGIC]):
                frame = frames.decode(data)
                name = self.getsockopt_string(zmq.LAST_ENDPOINT).rpartition("/")[2]
                if (frame.kind, frame.number) == (kind, number) and name.startswith(link):
                    for one in change(data):
                        whole(self, one, *rest, **options)  # type: ignore[call-overload]
                    return None
            return whole(self, data, *rest, **options)  # type: ignore[call-overload]

        replace(zmq.Socket, "send", send)

    return before


def lost(data: bytes) -> list[bytes]:
    return []


def repeated(data: bytes) -> list[bytes]:
    return [data, data]


def damaged(data: bytes) -> list[bytes]:
    return [data[:-1] + bytes([data[-1] ^ 1])]


def foreign(data: bytes) -> list[bytes]:
    frame = frames.decode(data)
    return [frames.encode(frame.kind, frame.epoch ^ 1, frame.number, msgspec.msgpack.decode(frame.payload))]


def die(data: bytes) -> list[bytes]:
    os.kill(os.getpid(), signal.SIGKILL)
    return []


def marking(path: Path) -> Change:
    """The frame is sent, and `path` says that it was."""

    def change(data: bytes) -> list[bytes]:
        path.touch()
        return [data]

    return change


def await_path(path: Path) -> None:
    """Until another process has made the file; fails after 3 seconds."""
    until = time.monotonic() + 3
    while not path.exists():
        if time.monotonic() > until:
            raise RuntimeError(f"{path} was never made")
        time.sleep(0.002)


def instead(victim: str, owner: object, name: str, value: object) -> Before:
    """In `victim`, `value` takes the place of the attribute."""

    def before(role: str) -> None:
        if role == victim:
            replace(owner, name, value)

    return before


def ahead(victim: str, owner: object, name: str, act: Callable[[], None], nth: int = 1) -> Before:
    """In `victim`, `act` runs before the `nth` call of that method."""

    def before(role: str) -> None:
        if role == victim:
            whole, calls = getattr(owner, name), iter(range(1, 1_000_000))

            def wrapped(*args: object, **options: object) -> object:
                if next(calls) == nth:
                    act()
                return whole(*args, **options)

            replace(owner, name, wrapped)

    return before


def late(victim: str, name: str, method: str, seconds: float) -> Before:
    """`victim` is late with `method` of its end of the relay `name`."""
    return ahead(victim, relay.strategy(name), method, lambda: time.sleep(seconds))


class Causes:
    """What each rank says when it leaves, from its report to the launcher."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def before(self, role: str) -> None:
        """The hook that keeps a copy of every failed report."""
        whole = Reporter.send

        def send(reporter: Reporter, report: object) -> None:
            if isinstance(report, FailedReport):
                (self._folder / role).write_bytes(msgspec.json.encode(report))
            whole(reporter, report)  # type: ignore[arg-type]

        replace(Reporter, "send", send)

    def of(self, role: str) -> FailedReport:
        return msgspec.json.decode((self._folder / role).read_bytes(), type=FailedReport)


async def first_tokens(factory: ForkFactory, size: int, **changes: object) -> list[int]:
    """The first request of an engine, asked as soon as the engine says that it is ready."""
    async with AsyncLLM(config_for(size, **changes), factory) as llm:
        return [token async for output in llm.generate([1, 2, 3], SamplingParams(4)) for token in output.token_ids]


async def death(factory: ForkFactory, size: int, **changes: object) -> EngineDeadError:
    """The error with which an engine's first request ends; all ranks have left by themselves after it."""
    llm = AsyncLLM(config_for(size, **changes), factory)
    with pytest.raises(EngineDeadError) as caught:
        async for _ in llm.generate([1, 2, 3], SamplingParams(40)):
            pass
    llm.shutdown()
    assert not factory.living()
    return caught.value


def start_fails(factory: ForkFactory, size: int, **changes: object) -> StartupError:
    """The error with which an engine's start ends, in time and with nothing left."""
    began = time.monotonic()
    with pytest.raises(StartupError) as caught:
        AsyncMPClient(config_for(size, **changes), factory)
    assert time.monotonic() - began < 5
    assert not factory.living()
    return caught.value


def behind_the_order(role: str) -> None:
    """Rank 0 finds nothing on its sockets until the order to stop has come, and at the first look after that."""
    if role != "dp0.rank0":
        return
    take, receive, looks = Lifeline._take, Port.receive, iter(range(1_000_000))
    ordered = threading.Event()

    def take_and_note(self: Lifeline, notice: Notice) -> None:
        take(self, notice)
        if notice.notice == "stop":
            ordered.set()

    def receive_later(self: Port) -> None:
        if ordered.wait(0.001) and next(looks) > 0:
            receive(self)

    replace(Lifeline, "_take", take_and_note)
    replace(Port, "receive", receive_later)
