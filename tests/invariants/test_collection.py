"""I43 and I44: a forgotten client is collected with all it held, wherever that happens; sockets are closed by their own
threads."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zmq

from engine.client.receiving import Reception
from engine.client.seats import Seats
from engine.errors import ExitCode
from engine.llm import AsyncLLM
from engine.messages import SamplingParams
from tests.engine.driving import begin
from tests.engine.forks import ForkFactory, config_for
from tests.invariants import Change, invariant
from tests.invariants.callers import (
    BOUND,
    PATIENT,
    PROMPT,
    Caller,
    LoopCaller,
    PlainCaller,
    both_kinds,
    dies,
    until,
)
from tests.invariants.leavings import nothing_left
from tests.invariants.starts import Factories
from tests.invariants.starts import factories as factories
from tests.invariants.starts import place as place

AIO, SYNC, BASE = "engine/client/aio.py", "engine/client/sync.py", "engine/client/base.py"
RESOURCES = "engine/client/resources.py"

KIN = ("I34", "I37", "I38", "I39", "I44")


# ---- I43 ----

HELD = (
    Change(AIO, "self._client = weakref.ref(client)", "self._client = lambda: client"),
    Change(
        SYNC,
        "self._receiver = Receiver(self._resources)",
        "self._receiver = Receiver(self._resources)\nself._receiver.client = self",
    ),
    Change(
        BASE,
        "self._finalizer = finalizer_of(self, resources.release)",
        "self._finalizer = finalizer_of(self, self.shutdown)",
    ),
)
"""Changes by which something that lives on has the client."""


class Forgettable:
    """A client to which nobody else refers than this; with asyncio its loop runs on."""

    def __init__(self, caller: Caller) -> None:
        self.factory = caller.factory
        self.ghost = weakref.ref(caller.client)
        self.resources = caller.client._resources
        self.box = [caller.client]
        del caller.client

    def forget(self) -> None:
        self.box.clear()

    def is_collected(self) -> bool:
        return self.ghost() is None


def never_used(caller: Caller) -> None:
    """With asyncio it is on no loop yet."""


def idle(caller: Caller) -> None:
    caller.serve()


def amid_requests(caller: Caller) -> None:
    for name in "abc":
        caller.add(name, 400)
    caller.read()


def after_a_time_out(caller: Caller) -> None:
    with pytest.raises(TimeoutError):
        caller.call("pause_scheduler", "wait", timeout=0)


def after_death(caller: Caller) -> None:
    """The error that the engine died of has been raised, and so knows who called."""
    caller.signal(0, signal.SIGKILL)
    for _ in range(2):
        dies(caller.begin_read())


def in_a_cycle(caller: Caller) -> None:
    caller.client.itself = caller.client  # type: ignore[attr-defined]


STATES = (never_used, idle, amid_requests, after_a_time_out, after_death, in_a_cycle)


def ended(forgettable: Forgettable) -> None:
    """The engine was stopped in order, and was so when the client was gone."""
    assert forgettable.factory.exits() == [ExitCode.STOPPED]


@invariant("I43", breaks=HELD, kin=KIN)
@pytest.mark.parametrize("state", STATES, ids=lambda state: str(state.__name__))
@both_kinds
def test_a_forgotten_client_is_collected_with_all_it_held(
    kind: str, state: Callable[[Caller], None], place: Path, factories: Factories
) -> None:
    with nothing_left(place):
        caller = make(kind, factories())
        state(caller)
        forgettable = Forgettable(caller)
        forgettable.forget()
        if state in (in_a_cycle, after_a_time_out, after_death):  # errors and the frames in them are cycles
            gc.collect()
        until(forgettable.is_collected, "the client is collected")
        if state is not after_death:
            ended(forgettable)
        assert forgettable.resources.context.closed
        caller.close()


def make(kind: str, factory: ForkFactory, **changes: Any) -> Caller:
    config = config_for(1, **{"timeouts": PATIENT, **changes})
    return LoopCaller(config, factory) if kind == "asyncio" else PlainCaller(config, factory)


def during(patch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], None]) -> None:
    """`act` comes before each call of that method."""
    whole = getattr(owner, name)

    def call(*args: Any) -> Any:
        act()
        return whole(*args)

    patch.setattr(owner, name, call)


PLACES = {"engine-monitor": (Seats, "attend"), "receiver": (Reception, "take")}
"""Methods that are called on these threads; with asyncio the receiver is a task of the loop."""


@invariant("I43", breaks=Change(RESOURCES, "elif threading.current_thread() in self.threads:", "elif False:"), kin=KIN)
@pytest.mark.parametrize("where", PLACES)
@both_kinds
def test_a_client_may_be_collected_on_a_thread_of_its_own(
    kind: str, where: str, place: Path, factories: Factories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a collection of garbage may come anywhere: there nobody can wait for the very thread."""
    with nothing_left(place):
        caller = make(kind, factories())
        caller.add("under way", 400)
        forgettable = Forgettable(caller)
        during(monkeypatch, *PLACES[where], forgettable.forget)
        if (watch := forgettable.resources.watch) is not None:
            watch.wake()
        until(forgettable.is_collected, "the client is collected")
        until(forgettable.resources._done.is_set, "all is given back")
        ended(forgettable)
        caller.close()


def test_all_of_a_program_may_be_collected_as_garbage(place: Path, factories: Factories) -> None:
    """The front door with streams under way, in a cycle, and its output task."""

    async def run() -> None:
        llm = AsyncLLM(config_for(1, timeouts=PATIENT), factories())
        stream = llm.generate(PROMPT, SamplingParams(400))
        await anext(stream)
        ghost = weakref.ref(llm)
        await stream.aclose()
        llm.itself = llm  # type: ignore[attr-defined]
        del llm, stream
        gc.collect()
        assert ghost() is None

    with nothing_left(place):
        asyncio.run(asyncio.wait_for(run(), BOUND))


# ---- I44 ----


class Closers:
    """Who closes which socket of a client, noted when it is done."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, str, bool]] = []
        """The kind of socket, the thread's name, and whether it held the lock under which others use that socket."""
        self.sending: Any = None
        whole = zmq.sugar.socket.Socket.close

        def close(socket: zmq.Socket[Any], linger: int | None = None) -> None:
            if not socket.closed:
                held = self.sending is not None and self.sending._is_owned()
                kind = zmq.SocketType(int(socket.get(zmq.TYPE))).name
                self.seen.append((kind, threading.current_thread().name, held))
            whole(socket, linger)

        patch.setattr(zmq.sugar.socket.Socket, "close", close)


def by_a_shutdown_elsewhere(caller: Caller) -> None:
    begin(caller.client.shutdown).result(BOUND)


def by_a_shutdown_after_death(caller: Caller) -> None:
    caller.signal(0, signal.SIGKILL)
    until(lambda: caller.client.dead is not None, "the death is known")
    by_a_shutdown_elsewhere(caller)


def by_being_forgotten(caller: Caller) -> None:
    forgettable = Forgettable(caller)
    begin(forgettable.forget).result(BOUND)
    until(forgettable.is_collected, "the client is collected")


@invariant(
    "I44",
    breaks=(
        Change(AIO, "if self._is_here() or not self.loop.is_running():", "if True:"),
        Change(SYNC, "self._output.close(linger=0)", "pass"),
        Change(
            SYNC, "with self.sending:\n    self._resources.close_unattached()", "self._resources.close_unattached()"
        ),
    ),
    kin=("I22", "I34", "I37", "I38", "I43"),
)
@pytest.mark.parametrize(
    "how", [by_a_shutdown_elsewhere, by_a_shutdown_after_death, by_being_forgotten], ids=lambda how: str(how.__name__)
)
@both_kinds
def test_every_socket_is_closed_by_the_thread_that_uses_it(
    kind: str, how: Callable[[Caller], None], place: Path, factories: Factories, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = make(kind, factories())
    caller.add("under way", 400)
    caller.read()
    closers = Closers(monkeypatch)
    if isinstance(caller, PlainCaller):
        closers.sending = caller.client._receiver.sending
    how(caller)
    caller.close()
    assert sorted(kind for kind, _, _ in closers.seen) == ["PAIR", "PULL", "ROUTER"]
    for socket, thread, held in closers.seen:
        if kind == "asyncio":
            assert thread == "loop"
        elif socket == "PULL":
            assert thread == "engine-receiver"
        else:
            assert held
