"""I37 and I38: a shutdown works from everywhere and at any time, and nothing is left after it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import zmq

from engine.client import aio
from engine.client.aio import AsyncMPClient
from engine.client.base import MPClient
from engine.client.sync import SyncMPClient
from engine.errors import ExitCode
from engine.messages import FinishReason, Outputs, Request, SamplingParams
from engine.monitor import EngineStopped
from engine.pulse import PulseTable
from tests.engine.driving import begin
from tests.engine.forks import config_for
from tests.invariants import Change, invariant
from tests.invariants.callers import (
    BOUND,
    PATIENT,
    PROMPT,
    Caller,
    LoopCaller,
    both_kinds,
    serving,
    until,
)
from tests.invariants.leavings import nothing_left
from tests.invariants.starts import Factories
from tests.invariants.starts import factories as factories
from tests.invariants.starts import place as place

AIO, RESOURCES, OWNERSHIP = "engine/client/aio.py", "engine/client/resources.py", "engine/client/ownership.py"

SOON = 3.0
"""Seconds for a shutdown that nobody keeps waiting; its own limits are longer."""

KIN = ("I34", "I38", "I43", "I44")


def stopped(caller: Caller) -> None:
    """The engine was stopped in order, and says so."""
    assert isinstance(caller.client.dead, EngineStopped)
    assert {process.exitcode() for process in caller.factory.processes.values()} == {ExitCode.STOPPED}


# ---- from everywhere ----


async def _shut(client: MPClient) -> None:
    client.shutdown()


def here(caller: Caller) -> None:
    """On the loop's thread, where there is one."""
    if isinstance(caller, LoopCaller):
        caller.begin(_shut(caller.client)).result(SOON)
    else:
        caller.client.shutdown()


def elsewhere(caller: Caller) -> None:
    begin(caller.client.shutdown).result(SOON)


def again_and_again(caller: Caller) -> None:
    for _ in range(2):
        here(caller)
        elsewhere(caller)


def at_once(caller: Caller) -> None:
    """On two threads."""
    for call in [begin(caller.client.shutdown) for _ in range(2)]:
        call.result(SOON)


def in_the_loop_and_elsewhere(caller: Caller) -> None:
    calls = [begin(caller.client.shutdown)]
    if isinstance(caller, LoopCaller):
        calls.append(caller.begin(_shut(caller.client)))
    for call in calls:
        call.result(SOON)


def after_death(caller: Caller) -> None:
    caller.signal(0, signal.SIGKILL)
    until(lambda: caller.client.dead is not None, "the death is known")
    here(caller)


WAYS = (here, elsewhere, again_and_again, at_once, in_the_loop_and_elsewhere, after_death)


@invariant("I37", breaks=Change(RESOURCES, "first = next(self._turns) == 0", "first = True"), kin=KIN)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: str(way.__name__))
@both_kinds
def test_a_shutdown_works_from_anywhere_and_any_number_of_times(
    kind: str, way: Callable[[Caller], None], place: Path
) -> None:
    with nothing_left(place), serving(kind, 2) as caller:
        caller.add("under way", 400)
        caller.read()
        way(caller)
        assert caller.factory.living() == []
        if way is not after_death:
            assert isinstance(caller.client.dead, EngineStopped)
            assert caller.factory.exits() == [ExitCode.STOPPED] * 2


def what_is_left(caller: Caller) -> list[str]:
    """Of the engine, at this very moment."""
    resources = caller.client._resources
    left = [] if resources.context.closed else ["sockets"]
    left += ["directory"] if os.path.exists(resources.endpoints.directory) else []
    return left + caller.factory.living()


@invariant(
    "I37",
    breaks=(Change(RESOURCES, "self._await_release()", "pass"), Change(RESOURCES, "self.close_here()", "pass")),
    kin=KIN,
)
@both_kinds
def test_who_comes_second_waits_until_all_is_given_back_and_keeps_nobody_waiting(kind: str, place: Path) -> None:
    with nothing_left(place), serving(kind) as caller:
        client = caller.client
        caller.serve()
        caller.signal(0, signal.SIGSTOP)
        first = begin(lambda: client.shutdown(0.3))
        until(lambda: client._resources.released, "the first shutdown has begun")

        async def second() -> list[str]:
            client.shutdown()
            return what_is_left(caller)

        if isinstance(caller, LoopCaller):
            # The loop stands still meanwhile, and so cannot do what the first asks of it.
            left = caller.begin(second()).result(aio.CLOSE_LIMIT)
        else:
            client.shutdown()
            left = what_is_left(caller)
        assert left == []
        first.result(SOON)


@contextlib.contextmanager
def limited(seconds: float = BOUND) -> Iterator[None]:
    """For what runs on the main thread: it is interrupted after that time, wherever it waits."""

    def give_up(*_: object) -> NoReturn:
        raise AssertionError(f"not over after {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@invariant("I37", breaks=Change(RESOURCES, "if me in self._inside:", "if False:"), kin=KIN)
@both_kinds
def test_a_finaliser_in_the_middle_of_a_shutdown_on_the_same_thread_is_none_too_many(
    kind: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = PulseTable.close, list[None]()

    def close(self: PulseTable) -> None:
        calls.append(caller.client.shutdown())  # type: ignore[func-returns-value]
        whole(self)

    with nothing_left(place), serving(kind) as caller, limited():
        monkeypatch.setattr(PulseTable, "close", close)
        caller.client.shutdown()
        assert calls == [None]


SENDING = """self.sending = threading.RLock()
\"\"\"Held while something is put on the input socket. A signal's handler may want it while its thread has it.\"\"\"
"""


@invariant("I37", breaks=Change("engine/client/sync.py", SENDING, "self.sending = threading.Lock()"), kin=KIN)
@pytest.mark.parametrize("lately", ["idle", "sending"])
@both_kinds
def test_a_signals_handler_may_shut_down_whatever_the_main_thread_does(
    kind: str, lately: str, place: Path, factories: Factories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is the main thread's, and the signal comes while it reads, or holds what it needs for a send."""
    client: Any = None

    def shut(*_: object) -> None:
        client.shutdown()

    def interrupt() -> None:
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGUSR1)

    whole = zmq.Socket.send_multipart

    def send_multipart(self: Any, *args: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGUSR1)
        return whole(self, *args, **options)

    async def on_a_loop() -> None:
        nonlocal client
        client = AsyncMPClient(config_for(1, timeouts=PATIENT), factories())
        if lately == "idle":
            begin(interrupt)
            await client.get_output_async()
        else:
            monkeypatch.setattr(zmq.Socket, "send_multipart", send_multipart)
            await client.add_request_async(Request("a", PROMPT, SamplingParams(4)))

    def plainly() -> None:
        nonlocal client
        client = SyncMPClient(config_for(1, timeouts=PATIENT), factories())
        if lately == "idle":
            begin(interrupt)
            client.get_output()
        else:
            monkeypatch.setattr(zmq.Socket, "send_multipart", send_multipart)
            client.add_request(Request("a", PROMPT, SamplingParams(4)))

    before = signal.signal(signal.SIGUSR1, shut)
    try:
        with nothing_left(place), limited(), pytest.raises(EngineStopped):
            asyncio.run(on_a_loop()) if kind == "asyncio" else plainly()
    finally:
        signal.signal(signal.SIGUSR1, before)


# ---- loops that are closed, blocked, or in the middle of a hook ----


@invariant("I37", breaks=Change(AIO, "if self.loop.is_closed():", "if False:"), kin=KIN)
def test_a_shutdown_works_after_the_loop_was_closed_with_everything_open(place: Path, factories: Factories) -> None:
    loop = asyncio.new_event_loop()
    waiting: list[asyncio.Task[Any]] = []

    async def make() -> AsyncMPClient:
        client = AsyncMPClient(config_for(1, timeouts=PATIENT), factories())
        for call in (client.get_output_async(), client.call_utility_async("pause_scheduler", "wait")):
            waiting.append(loop.create_task(call))
        await asyncio.sleep(0.02)
        return client

    with nothing_left(place):
        client = loop.run_until_complete(make())
        loop.close()
        begin(client.shutdown).result(SOON)
        assert isinstance(client.dead, EngineStopped)
    for task in waiting:
        task._log_destroy_pending = False  # type: ignore[attr-defined]


@invariant(
    "I37",
    breaks=Change(
        AIO,
        "if self._closed.wait(CLOSE_LIMIT) or self.loop.is_running():",
        "if self._closed.wait() or self.loop.is_running():",
    ),
    kin=KIN,
)
def test_a_blocked_loop_keeps_no_shutdown_waiting_and_closes_its_sockets_when_it_goes_on(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio, "CLOSE_LIMIT", 0.1)
    go_on = threading.Event()

    async def block() -> None:
        go_on.wait(2 * SOON)

    with nothing_left(place), serving("asyncio") as caller:
        caller.add("under way", 400)
        caller.read()
        blocked = caller.begin(block())  # type: ignore[attr-defined]
        begin(caller.client.shutdown).result(SOON)
        assert caller.factory.exits() == [ExitCode.STOPPED]
        assert what_is_left(caller) == ["sockets"]
        go_on.set()
        blocked.result(SOON)


class Hooked(AsyncMPClient):
    """Shuts itself down inside its own hook."""

    async def process_engine_outputs(self, outputs: Outputs) -> None:
        self.shutdown()


@invariant("I37")
def test_a_shutdown_inside_a_hook_loses_no_output(place: Path, factories: Factories) -> None:
    async def run() -> None:
        client = Hooked(config_for(1, timeouts=PATIENT), factories())
        await client.add_request_async(Request("a", PROMPT, SamplingParams(400)))
        ends: list[FinishReason | None] = []

        async def read() -> None:
            while True:
                ends.extend(output.finish_reason for output in (await client.get_output_async()).outputs)

        with pytest.raises(EngineStopped):
            await read()
        assert ends[0] is None
        assert ends[-1] is FinishReason.ABORT

    with nothing_left(place):
        asyncio.run(asyncio.wait_for(run(), BOUND))
