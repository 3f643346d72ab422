"""I37 and I38: a shutdown during the start and at the interpreter's exit, and that nothing is left after any."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.client.aio import AsyncMPClient
from engine.client.base import MPClient
from engine.client.sync import SyncMPClient
from engine.errors import StartupError
from engine.launch import Process
from engine.startup import StartupLink
from tests.engine.driving import begin
from tests.engine.forks import ForkFactory, config_for
from tests.engine.wires import ahead
from tests.invariants import Change, invariant
from tests.invariants.callers import PATIENT, Call, Caller, both_kinds, serving, until
from tests.invariants.gates import Bell, Gate
from tests.invariants.guests import joined
from tests.invariants.leavings import await_gone, nothing_left
from tests.invariants.starts import LEAD, Factories
from tests.invariants.starts import factories as factories
from tests.invariants.starts import place as place

RESOURCES, OWNERSHIP = "engine/client/resources.py", "engine/client/ownership.py"

SOON = 3.0
"""Seconds for what is given up at once; the deadlines of a start are far longer."""

KIN = ("I34", "I37", "I38", "I39", "I43", "I44")


# ---- during the start ----


class Published:
    """A client that others know of as soon as it has anything, before its constructor has returned."""

    published: list[MPClient]

    def _context(self) -> Any:
        self.published.append(self)  # type: ignore[arg-type]
        return super()._context()  # type: ignore[misc]


class PublishedOnALoop(Published, AsyncMPClient):
    """For asyncio."""


class PublishedPlain(Published, SyncMPClient):
    """For plain calls."""


@pytest.fixture
def published() -> list[MPClient]:
    Published.published = []
    return Published.published


def published_class(kind: str) -> type[MPClient]:
    return PublishedOnALoop if kind == "asyncio" else PublishedPlain


class During:
    """A process factory that has something done, and lets it come far, while it starts rank 0."""

    def __init__(self, factory: ForkFactory, act: Callable[[], None]) -> None:
        self._factory = factory
        self._act = act

    def start(self, role: str, target: str, args: tuple[Any, ...], fds: Sequence[int]) -> Process:
        if role == LEAD:
            self._act()
        return self._factory.start(role, target, args, fds)


def gives_up(constructor: Call, shutdown: Call) -> None:
    """Both are over soon, and the constructor says why it gives no client."""
    with pytest.raises(StartupError, match="shut down during start-up"):
        constructor.result(SOON)
    shutdown.result(SOON)


@invariant("I37", breaks=Change(RESOURCES, "self.abandoned.call()", "pass"), kin=KIN)
@both_kinds
def test_a_shutdown_on_another_thread_ends_a_start_that_waits_for_its_ranks(
    kind: str, place: Path, published: list[MPClient]
) -> None:
    gate, bell = Gate(), Bell()

    def hold() -> None:
        bell.ring()
        gate.wait()

    factory = ForkFactory(ahead(LEAD, StartupLink, "hello", hold), [gate.fileno(), bell.fileno()])
    with nothing_left(place):
        # Of one rank: nothing else happens that would let the constructor look.
        constructor = begin(lambda: published_class(kind)(config_for(1, timeouts=PATIENT), factory))
        bell.wait()
        gives_up(constructor, begin(published[0].shutdown))
        assert factory.living() == []
    gate.close()
    bell.close()


@invariant("I37", breaks=Change(RESOURCES, "self._start_over.clear()", "pass"), kin=KIN)
@both_kinds
def test_a_shutdown_on_another_thread_ends_a_start_that_has_not_started_its_ranks(
    kind: str, place: Path, published: list[MPClient], factories: Factories
) -> None:
    shutdowns: list[Call] = []

    def shut() -> None:
        shutdowns.append(begin(published[0].shutdown))
        until(lambda: published[0]._resources.released, "the shutdown has begun")

    factory = factories()
    with nothing_left(place):
        constructor = begin(lambda: published_class(kind)(config_for(2, timeouts=PATIENT), During(factory, shut)))
        until(lambda: bool(shutdowns), "the start has come to the first rank")
        gives_up(constructor, shutdowns[0])
        assert factory.living() == []


@invariant("I37", breaks=Change("engine/client/guest.py", "self.check_wanted()", "pass"), kin=KIN)
@both_kinds
def test_a_shutdown_on_another_thread_ends_a_guests_wait_for_its_welcome(
    kind: str, place: Path, published: list[MPClient]
) -> None:
    with nothing_left(place), serving(kind, client_count=2) as caller, caller.client.seat(1) as seat:
        directory = place / "nobody"
        directory.mkdir()
        seat.directory = str(directory)
        constructor = begin(lambda: published_class(kind).join(seat))
        until(lambda: (directory / "output.1").exists(), "the guest waits")
        gives_up(constructor, begin(published[0].shutdown))
        for link in ("input.1", "output.1"):
            (directory / link).unlink(missing_ok=True)
        directory.rmdir()
        caller.serve()


# ---- at the interpreter's exit ----

PROGRAM = """
import asyncio, threading, time
from engine.client.aio import AsyncMPClient
from engine.client.sync import SyncMPClient
from engine.errors import EngineDeadError
from engine.messages import Request, SamplingParams
from engine.startup import StartupLink
from tests.engine.forks import ForkFactory, config_for
from tests.engine.wires import ahead
from tests.invariants.callers import PATIENT, Call, Caller, both_kinds, serving, until

CONFIG = config_for(1, timeouts=PATIENT)
factories = [ForkFactory() for _ in range(4)]

async def serve(client):
    await client.add_request_async(Request("a", [1, 2], SamplingParams(400)))
    await client.get_output_async()

async def serve_for_ever(client):
    await serve(client)
    served.set()
    await asyncio.Event().wait()

def read_for_ever(client):
    try:
        while True:
            client.get_output()
    except EngineDeadError:
        pass

def start_for_ever():
    def hold():
        threading.Event().wait()
    factory = factories[3] = ForkFactory(ahead("dp0.rank0", StartupLink, "hello", hold))
    try:
        SyncMPClient(CONFIG, factory)
    except EngineDeadError as error:
        print("given up:", error, flush=True)

closed_loop = AsyncMPClient(CONFIG, factories[0])
asyncio.run(serve(closed_loop))

running_loop, served = AsyncMPClient(CONFIG, factories[1]), threading.Event()
threading.Thread(target=lambda: asyncio.run(serve_for_ever(running_loop)), daemon=True).start()
served.wait()

plain = SyncMPClient(CONFIG, factories[2])
plain.add_request(Request("a", [1, 2], SamplingParams(400)))
threading.Thread(target=read_for_ever, args=(plain,), daemon=True).start()

threading.Thread(target=start_for_ever, daemon=True).start()
while not factories[3].processes:
    time.sleep(0.01)
print(*(process.pid for factory in factories for process in factory.processes.values()), flush=True)
"""


@invariant("I37", breaks=Change(RESOURCES, "atexit.register(finalizer)", "finalizer.atexit = False"), kin=("I42",))
def test_whatever_runs_when_the_interpreter_exits_is_stopped_in_order(place: Path) -> None:
    """Clients whose loop is closed or runs on, whose reader waits, whose start never ends; nobody shuts them down."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
        env={**os.environ, "TMPDIR": str(place)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    pids, *said = done.stdout.splitlines()
    assert len(pids.split()) == 4
    await_gone([int(pid) for pid in pids.split()])
    assert len(said) <= 1
    assert os.listdir(place) == []


# ---- I38 ----


def idle(caller: Caller) -> None:
    caller.client.shutdown()


def amid_requests(caller: Caller) -> None:
    for name in "abc":
        caller.add(name, 400)
    caller.read()
    caller.client.shutdown()


def draining(caller: Caller) -> None:
    caller.add("a", 20)
    caller.client.shutdown(drain=True)


def with_a_rank_that_is_stopped(caller: Caller) -> None:
    caller.serve()
    caller.signal(1, signal.SIGSTOP)
    caller.client.shutdown(0.3)


def with_all_ranks_stopped(caller: Caller) -> None:
    caller.serve()
    for rank in (0, 1):
        caller.signal(rank, signal.SIGSTOP)
    caller.client.shutdown(0)


def after_a_death(caller: Caller) -> None:
    caller.signal(1, signal.SIGKILL)
    until(lambda: caller.client.dead is not None, "the death is known")
    caller.client.shutdown()


def with_seats_that_nobody_took(caller: Caller) -> None:
    for index in (1, 2):
        caller.client.seat(index).close()
    caller.client.shutdown()


def with_a_guest(caller: Caller) -> None:
    with joined(caller) as guest:
        guest.serve()
        caller.client.shutdown()


SITUATIONS = (
    idle,
    amid_requests,
    draining,
    with_a_rank_that_is_stopped,
    with_all_ranks_stopped,
    after_a_death,
    with_seats_that_nobody_took,
    with_a_guest,
)


@invariant(
    "I38",
    breaks=(
        Change("engine/launch.py", "rank.process.send_signal(signal.SIGKILL)", "pass"),
        Change(RESOURCES, "rest.callback(self._give_back)", "pass"),
        Change(RESOURCES, "rest.callback(self.pulses.close)", "pass"),
        Change(RESOURCES, "rest.callback(self.close_sockets)", "pass"),
        Change("engine/client/seats.py", "for fd in (self.news, self.presence, self.process):", "for fd in ():"),
    ),
    kin=(*KIN, "I35", "I41", "I36", "I42"),
)
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: str(situation.__name__))
@both_kinds
def test_nothing_is_left_after_a_shutdown(kind: str, situation: Callable[[Caller], None], place: Path) -> None:
    given = place / "given"
    given.mkdir()
    (given / "mine").write_text("the user's")
    with nothing_left(place), serving(kind, 2, socket_dir=str(given), client_count=3) as caller:
        pids = list(caller.client.pids.values())
        assert len(os.listdir(given)) > 5
        situation(caller)
        # By number: not even as what nobody has reaped yet.
        assert [pid for pid in pids if os.path.exists(f"/proc/{pid}")] == []
        assert os.listdir(given) == ["mine"]
    assert (given / "mine").read_text() == "the user's"
