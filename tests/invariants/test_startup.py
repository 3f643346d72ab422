"""I34 and I35: a start gives a live client, or an error in time that says who and how, and nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, NoReturn

import pytest

from engine.claim import Claim
from engine.client import ownership
from engine.config import Timeouts
from engine.endpoints import Endpoints
from engine.errors import ConfigError, ExitCode, StartupError
from engine.launch import Process
from engine.lifeline import Lifeline
from engine.messages import EngineReady, Hello
from engine.model.llama import Llama
from engine.parallel.group import TensorGroup
from engine.rank import RankProcess
from engine.startup import StartupLink
from tests.engine.forks import ForkFactory, config_for, replace
from tests.engine.wires import Before, ahead, all_of
from tests.invariants import Change, invariant
from tests.invariants.callers import PATIENT, both_kinds
from tests.invariants.leavings import nothing_left
from tests.invariants.starts import AT_ONCE, LEAD, SECOND, Factories, fails, start
from tests.invariants.starts import factories as factories
from tests.invariants.starts import place as place

BASE, STARTING, OWNERSHIP = "engine/client/base.py", "engine/client/starting.py", "engine/client/ownership.py"

START_ONE = "self._start_one(rank_role(rank, launch.engine_index), (encoded, rank), factory, shared)"

HASTY = Timeouts(startup=1.2, handshake=1.2, step=1.0, stall=0.5, shutdown=1.0)
"""For what must be noticed by its deadline alone."""


# ---- I34 ----


class Half:
    """A process factory that cannot start rank 1."""

    def __init__(self, factory: ForkFactory) -> None:
        self._factory = factory

    def start(self, role: str, target: str, args: tuple[Any, ...], fds: Sequence[int]) -> Process:
        if role == SECOND:
            raise OSError("no more processes")
        return self._factory.start(role, target, args, fds)


class Interrupting:
    """A process factory during whose work a Ctrl-C comes: rank 0 has been started, and nobody has heard of it yet."""

    def __init__(self, factory: ForkFactory) -> None:
        self._factory = factory

    def start(self, role: str, target: str, args: tuple[Any, ...], fds: Sequence[int]) -> Process:
        process = self._factory.start(role, target, args, fds)
        signal.raise_signal(signal.SIGINT)
        return process


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, value)
        yield


def no_thread(name: str) -> AbstractContextManager[None]:
    """The thread of that name cannot be started."""
    whole = threading.Thread.start

    def start(self: threading.Thread) -> None:
        if self.name == name:
            raise RuntimeError("can't start new thread")
        whole(self)

    return replaced(threading.Thread, "start", start)


def no_memory_file() -> AbstractContextManager[None]:
    def refuse(*_: object) -> NoReturn:
        raise OSError("no more memory files")

    return replaced(os, "memfd_create", refuse)


def no_bind() -> AbstractContextManager[None]:
    whole = Endpoints.address
    return replaced(
        Endpoints, "address", lambda self, link: whole(self, f"missing/{link}" if link == "startup" else link)
    )


@contextlib.contextmanager
def few_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    some_more = len(os.listdir("/proc/self/fd")) + 12  # an event loop's own, and not enough for an engine
    resource.setrlimit(resource.RLIMIT_NOFILE, (some_more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def raising(*_: object) -> NoReturn:
    raise MemoryError("no room")


def stopping(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


failing_beside_a_stopped_one = all_of(
    ahead(SECOND, Llama, "__init__", raising), ahead(LEAD, Llama, "__init__", stopping)
)
"""One rank fails, and the other one cannot leave by itself."""


@dataclass(frozen=True)
class Failure:
    """What goes wrong, and the error that the caller gets."""

    name: str
    error: type[BaseException]
    text: str
    fault: Callable[[], AbstractContextManager[None]] = nullcontext
    factory: Callable[[ForkFactory], Any] = lambda factory: factory
    before: Before | None = None
    kinds: tuple[str, ...] = ("asyncio", "plain")

    def __str__(self) -> str:
        return self.name


FAILURES = (
    Failure("no process", StartupError, "dp0.rank1: cannot be started: no more processes", factory=Half),
    Failure("no bind", StartupError, "client: cannot bind", no_bind),
    Failure("no memory file", OSError, "no more memory files", no_memory_file),
    Failure("no monitor", RuntimeError, "can't start new thread", lambda: no_thread("engine-monitor")),
    Failure("no receiver", RuntimeError, "new thread", lambda: no_thread("engine-receiver"), kinds=("plain",)),
    Failure("no descriptors", StartupError, "file descriptors", few_descriptors),
    Failure("rank fails", StartupError, "dp0.rank1: MemoryError", before=ahead(SECOND, Llama, "__init__", raising)),
    Failure(
        "rank fails beside a stopped one", StartupError, "dp0.rank1: MemoryError", before=failing_beside_a_stopped_one
    ),
    Failure("Ctrl-C", KeyboardInterrupt, "^$", factory=Interrupting),
)
CASES = [pytest.param(kind, failure, id=f"{kind}-{failure}") for failure in FAILURES for kind in failure.kinds]


@invariant(
    "I34",
    breaks=(
        Change(BASE, "if resources is not None:\n    self.shutdown()", "pass"),
        Change(OWNERSHIP, "undo.callback(self.endpoints.remove)", "pass"),
        Change(OWNERSHIP, "self.ranks.take_down(self.farewell, LEAVE_GRACE, start_grace)", "pass"),
        Change("engine/launch.py", f"with signals_wait():\n    {START_ONE}", f"if True:\n    {START_ONE}"),
        Change("engine/monitor.py", "ranks.unwatch(self._wake.fileno())\nself._wake.close()", "pass"),
    ),
    kin=("I35", "I36", "I37"),
)
@pytest.mark.parametrize(("kind", "failure"), CASES)
def test_a_start_that_fails_raises_in_time_and_leaves_nothing(
    kind: str, failure: Failure, place: Path, factories: Factories
) -> None:
    factory = failure.factory(factories(failure.before))
    with nothing_left(place):
        began = time.monotonic()
        with pytest.raises(failure.error, match=failure.text) as caught, failure.fault():
            start(kind, config_for(2, timeouts=PATIENT), factory)
        assert time.monotonic() - began < AT_ONCE
        # The error still holds all that was there when it was raised: nothing was left to a collection of garbage.
        assert caught.tb is not None


@invariant("I34", breaks=Change(OWNERSHIP, "limit = min(CLAIM_LIMIT, config.timeouts.startup)", "limit = CLAIM_LIMIT"))
@both_kinds
def test_a_directory_that_another_engine_uses_is_refused_within_the_time_of_a_start(
    kind: str, place: Path, factories: Factories
) -> None:
    directory = place / "given"
    directory.mkdir()
    other = Claim.of(str(directory))
    with nothing_left(place):
        began = time.monotonic()
        with pytest.raises(ConfigError, match="a directory that no running engine uses"):
            start(kind, config_for(1, timeouts=HASTY, socket_dir=str(directory)), factories())
        assert time.monotonic() - began < HASTY.startup + 1.0
    other.remove()


# ---- I35 ----


Act = Callable[[], None]

Moment = Callable[[Act], Before]
"""What to change in the ranks so that something is done at that moment."""


def at(role: str, owner: type, name: str) -> Moment:
    """When `role` is about to call that method for the first time."""
    return lambda act: ahead(role, owner, name, act)


def behind(role: str, record: type) -> Moment:
    """When `role` has sent that record on `startup`."""

    def moment(act: Act) -> Before:
        def before(who: str) -> None:
            whole = StartupLink._send

            def send(self: StartupLink, said: Any) -> None:
                whole(self, said)
                if isinstance(said, record):
                    act()

            if who == role:
                replace(StartupLink, "_send", send)

        return before

    return moment


def first(role: str) -> Moment:
    """Before `role` has reported anything."""

    def moment(act: Act) -> Before:
        def before(who: str) -> None:
            if who == role:
                act()

        return before

    return moment


STEPS: dict[str, tuple[str, str, Moment]] = {
    "first of all": (LEAD, "start", first(LEAD)),
    "before HELLO": (LEAD, "hello", at(LEAD, StartupLink, "hello")),
    "after HELLO": (LEAD, "hello", behind(LEAD, Hello)),
    "after INIT": (LEAD, "hello", at(LEAD, RankProcess, "_open_relay")),
    "in the group": (SECOND, "group", at(SECOND, TensorGroup, "form")),
    "with the model": (SECOND, "model", at(SECOND, Llama, "__init__")),
    "before READY": (LEAD, "connect", at(LEAD, StartupLink, "ready")),
    "after READY": (LEAD, "connect", behind(LEAD, EngineReady)),
    "before its report": (SECOND, "join", at(SECOND, Lifeline, "ready")),
}
"""Who, the last phase that it has reported, and when."""

HANGS = ("first of all", "after HELLO", "in the group", "after READY")


def leaving(code: int) -> Act:
    def leave() -> None:
        os._exit(code)

    return leave


def sending(signum: int) -> Act:
    """It sends itself that signal."""
    return lambda: os.kill(os.getpid(), signum)


WAYS: dict[str, tuple[Act, int, str]] = {
    "exit 0": (leaving(0), 0, "left unasked with exit code 0"),
    "exception": (raising, ExitCode.OWN_FAILURE, "MemoryError: no room"),
    "SIGKILL": (sending(signal.SIGKILL), -signal.SIGKILL, "killed by SIGKILL"),
    "exit 7": (leaving(7), 7, "left unasked with exit code 7"),
}
"""What it does then, its exit code, and what is said of it."""

ENDS = [
    pytest.param(kind, step, way, id=f"{step}-{way}")
    for number, (step, kind) in enumerate(zip(STEPS, cycle(("asyncio", "plain")), strict=False))
    for way in list(WAYS)[number % 2 :: 2]  # "first of all" nothing is there yet that could report an exception
]


@invariant(
    "I35",
    breaks=(
        Change(STARTING, "if any(has_failed(rank) for rank in ranks.all):", "if False:"),
        Change(
            STARTING,
            "raise StartupError(death.culprit, death.cause, exit_code=death.exit_code, phase=death.phase)",
            "raise StartupError(death.culprit, death.cause, exit_code=None, phase=death.phase)",
        ),
    ),
    kin=("I34", "I36"),
)
@pytest.mark.parametrize(("kind", "step", "way"), ENDS)
def test_a_process_that_ends_during_the_start_is_reported_at_once_with_its_exit_code(
    kind: str, step: str, way: str, place: Path, factories: Factories
) -> None:
    role, phase, moment = STEPS[step]
    act, code, text = WAYS[way]
    with nothing_left(place):
        error = fails(kind, config_for(2, timeouts=PATIENT), factories(moment(act)))
    assert (error.role, error.exit_code, error.phase) == (role, code, phase)
    assert text in error.cause
    assert f"exit code {code}" in str(error)


@invariant(
    "I35",
    breaks=Change(STARTING, "if limit.expired():", "if False:"),
    kin=("I34", "I36"),
)
@pytest.mark.parametrize(("kind", "step"), list(zip(cycle(("asyncio", "plain")), HANGS, strict=False)))
def test_a_process_that_hangs_during_the_start_is_reported_at_the_deadline(
    kind: str, step: str, place: Path, factories: Factories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped, so that not even its own thread can say anything, and with nothing to bound the others but the start."""
    monkeypatch.setattr(ownership, "LEAVE_GRACE", 0.2)
    role, phase, moment = STEPS[step]
    with nothing_left(place):
        error = fails(kind, config_for(2, timeouts=HASTY), factories(moment(sending(signal.SIGSTOP))))
    assert error.role == role
    assert error.phase == phase
