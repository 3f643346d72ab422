"""I10 to I14: a death, however it comes, reaches everybody who waits and everybody who comes later."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import select
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import pytest
import zmq

from engine.client.aio import AsyncMPClient
from engine.client.receiving import Reception
from engine.codec import sealed
from engine.errors import EngineDeadError
from engine.messages import CLIENT_ROLE, Request, SamplingParams
from engine.ports import Ports
from tests.engine.forks import ForkFactory, config_for
from tests.invariants import Change, invariant
from tests.invariants.callers import (
    BOUND,
    KINDS,
    PATIENT,
    PROMPT,
    Caller,
    LoopCaller,
    both_kinds,
    dies,
    serving,
    until,
)
from tests.invariants.guests import joined
from tests.invariants.vigil import LEAD, Vigil, dead_for_all, large, nothing, vigil

RECEIVING, INBOX = "engine/client/receiving.py", "engine/client/inbox.py"
AIO, SYNC = "engine/client/aio.py", "engine/client/sync.py"


def kin_of(name: str) -> tuple[str, ...]:
    """The other promises of what a death is like, and those whose tests read on to the error behind the outputs."""
    others = ("I1", "I2", "I3", "I5", "I6", "I10", "I11", "I12", "I13", "I14", "I20", "I21")
    return tuple(other for other in others if other != name)


# ---- every way to die, everybody who waits ----


def go_on(watch: Vigil) -> None:
    watch.go_on()


def kill(watch: Vigil) -> None:
    watch.caller.signal(0, signal.SIGKILL)


def cancel_receiver(watch: Vigil) -> None:
    assert isinstance(watch.caller, LoopCaller)
    watch.caller.begin(_cancel_receiver()).result(BOUND)


async def _cancel_receiver() -> None:
    (receiver,) = (task for task in asyncio.all_tasks() if task.get_name() == "engine-receiver")
    receiver.cancel()


def raise_in_step(ports: Ports) -> NoReturn:
    raise ValueError("the step went wrong")


def segfault(ports: Ports) -> None:
    faulthandler.disable()  # pytest's; the descriptor that it writes to is something else in a forked rank
    os.kill(os.getpid(), signal.SIGSEGV)


def lose_output(ports: Ports) -> None:
    ports._ports[0].output.close(linger=0)


def saying(frame: bytes) -> Callable[[Ports], None]:
    """Rank 0 sends that, and goes on."""
    return lambda ports: ports._ports[0].output.send(frame)


def no_room(*_: object) -> NoReturn:
    raise MemoryError("no room")


@dataclass(frozen=True)
class Cause:
    """A death: what rank 0 does once the test has done its part, and what is said of it."""

    name: str
    text: str
    act: Callable[[Ports], None] = nothing
    do: Callable[[Vigil], None] = go_on
    culprit: str = LEAD
    kinds: tuple[str, ...] = KINDS
    deaf: bool = False
    """Whether the receiver fails with an error of its own at the next message."""

    def __str__(self) -> str:
        return self.name


NESTED = sealed(b"\x95\x01\x00\x90\x93\x05\xc0" + b"\x91" * 5000)
"""A reply whose result is one list within another."""

CAUSES = (
    Cause("SIGKILL", "killed by SIGKILL", do=kill),
    Cause("SIGSEGV", "killed by SIGSEGV", segfault),
    Cause("exit 0", "left unasked with exit code 0", lambda _: os._exit(0)),
    Cause("exit 7", "left unasked with exit code 7", lambda _: os._exit(7)),
    Cause("exception in a step", "ValueError: the step went wrong", raise_in_step),
    Cause("output socket lost", "ZMQError", lose_output),
    Cause("undecodable frame", "sent an output frame that cannot be read", saying(sealed(b"\xc1"))),
    Cause("frame nested too deeply", "cannot be read: it is nested too deeply", saying(NESTED)),
    Cause("receiver failed", "no room", culprit=CLIENT_ROLE, deaf=True),
    Cause("receiver cancelled", "was cancelled", do=cancel_receiver, culprit=CLIENT_ROLE, kinds=("asyncio",)),
)
CASES = [pytest.param(kind, cause, id=f"{kind}-{cause.name}") for cause in CAUSES for kind in cause.kinds]


@invariant(
    "I12",
    breaks=(
        Change(
            "engine/death.py",
            "return rank.ended or rank.failed is not None",
            "return (rank.ended and rank.exitcode != 0) or rank.failed is not None",
        ),
        Change(SYNC, "for released in list(self._unsent):\n    released.set()", "pass"),
    ),
    kin=(*kin_of("I12"), "I35"),
)
@invariant(
    "I13",
    breaks=(
        Change(RECEIVING, "self._resources.die(EngineDeadError(rank_role(0), problem))", "pass"),
        Change(AIO, 'self._resources.die(EngineDeadError(CLIENT_ROLE, f"the receiver task {how}"))', "pass"),
        Change(SYNC, "self._resources.die(EngineDeadError(CLIENT_ROLE, cause))", "pass"),
    ),
    kin=(*kin_of("I13"), "I17"),
)
@pytest.mark.parametrize(("kind", "cause"), CASES)
def test_everybody_who_waits_has_the_same_error_with_its_cause(
    kind: str, cause: Cause, monkeypatch: pytest.MonkeyPatch
) -> None:
    with vigil(kind, cause.act) as watch:
        watch.assemble()
        if cause.deaf:
            monkeypatch.setattr(Reception, "take", no_room)
        cause.do(watch)
        error = watch.ends()
        assert error.culprit == cause.culprit
        assert cause.text in error.cause


@invariant(
    "I13",
    breaks=Change(AIO, "self.task.add_done_callback(self._receiver_ended)", "pass"),
    kin=(*kin_of("I13"), "I17"),
)
def test_a_receiver_that_is_cancelled_before_its_first_step_is_a_death(factory: ForkFactory) -> None:
    client = AsyncMPClient(config_for(1, timeouts=PATIENT), factory)
    factory.processes[LEAD].send_signal(signal.SIGSTOP)

    async def run() -> None:
        calls = (
            client.get_output_async(),
            client.get_output_async(),
            client.call_utility_async("step_counters"),
            client.add_request_async(large("large")),
        )
        waiters = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(0)  # each has come to its wait; the first has made the receiver, whose turn comes next
        await _cancel_receiver()
        errors = await asyncio.wait_for(asyncio.gather(*waiters, return_exceptions=True), BOUND)
        assert errors == [client.dead] * 4
        assert isinstance(errors[0], EngineDeadError)
        assert errors[0].cause == "the receiver task was cancelled"
        for late in (client.get_output_async(), client.call_utility_async("step_counters")):
            with pytest.raises(EngineDeadError, match="was cancelled"):
                await asyncio.wait_for(late, BOUND)
        assert len(client._resources.calls) == 0

    asyncio.run(run())
    factory.kill()
    client.shutdown()


# ---- the first call after a death ----


def killed(caller: Caller) -> None:
    """Rank 0 is killed, and its process is gone; whether the client knows is another matter."""
    pidfd = os.pidfd_open(caller.pid(0))
    caller.signal(0, signal.SIGKILL)
    assert select.select([pidfd], [], [], BOUND)[0]
    os.close(pidfd)


FIRST: dict[str, Callable[[Caller], Any]] = {
    "read": lambda caller: caller.begin_read(),
    "request": lambda caller: caller.begin_add(Request("first", PROMPT, SamplingParams(1))),
    "large request": lambda caller: caller.begin_add(large("first")),
    "utility": lambda caller: caller.begin_call("step_counters"),
}


@invariant(
    "I10",
    breaks=(
        Change(
            "engine/monitor.py",
            "if self._death is None:\n    self._listeners.append(listener)\n    return",
            "self._listeners.append(listener)\nreturn",
        ),
        Change(SYNC, "self.inbox.close()", "pass"),
    ),
    kin=(*kin_of("I10"), "I15", "I16", "I17", "I18", "I22", "I37", "I39", "I40"),
)
@both_kinds
@pytest.mark.parametrize("call", FIRST)
def test_the_first_call_of_all_after_a_death_has_its_error(kind: str, call: str) -> None:
    """The asyncio client was built outside of any loop, so nothing of it runs before."""
    with serving(kind) as caller:
        killed(caller)
        if call == "read":
            error = dies(caller.begin_read())  # the client need not know yet
        else:
            until(lambda: caller.client.dead is not None, "the death is known")
            error = dies(FIRST[call](caller))
        assert (error.culprit, error.cause) == (LEAD, "killed by SIGKILL")
        dead_for_all(caller, error)


@invariant(
    "I10",
    breaks=(
        Change(INBOX, "while self._readers:\n    self._wake_one()", "self._wake_one()"),
        Change(INBOX, "self._closed = True\nwhile self._readers:", "while self._readers:"),
        Change(INBOX, "self._closed = True\nself._changed.notify_all()", "self._closed = True\nself._changed.notify()"),
        Change(INBOX, "self._closed = True\nself._changed.notify_all()", "self._changed.notify_all()"),
    ),
    kin=(*kin_of("I10"), "I15", "I16", "I17", "I18", "I22", "I24", "I26", "I37", "I39", "I40", "I41"),
)
@both_kinds
def test_every_reader_that_waits_has_the_error_and_so_has_every_later_read(kind: str) -> None:
    with serving(kind) as caller:
        readers = [caller.begin_read() for _ in range(3)]
        if isinstance(caller, LoopCaller):
            caller.begin(asyncio.sleep(0)).result(BOUND)  # by then all of them wait
        else:
            waiting = caller.client._receiver.inbox._changed._waiters  # type: ignore[attr-defined]
            until(lambda: len(waiting) == 3, "all of them wait")
        caller.signal(0, signal.SIGKILL)
        errors = [dies(reader) for reader in readers]
        errors += [dies(caller.begin_read()) for _ in range(3)]
        assert {error.cause for error in errors} == {"killed by SIGKILL"}
        assert {id(error) for error in errors} == {id(caller.client.dead)}


# ---- utilities ----


@invariant(
    "I11",
    breaks=(
        Change(AIO, "self._resources.calls.fail(error)", "pass"),
        Change(SYNC, "self._resources.calls.fail(error)", "pass"),
        Change(AIO, "calls.leave(call_id)", "pass"),
        Change(SYNC, "calls.leave(call_id)", "pass"),
        Change(
            "engine/client/calls.py",
            "for _, future in waiting.values():",
            "for _, future in list(waiting.values())[:1]:",
        ),
    ),
    kin=(*kin_of("I11"), "I30", "I15", "I17", "I32", "I39", "I43"),
)
@both_kinds
def test_every_open_utility_call_fails_and_so_does_every_later_one_and_none_stays(kind: str) -> None:
    with serving(kind) as caller:
        caller.signal(0, signal.SIGSTOP)
        calls = [caller.begin_call("step_counters", timeout=timeout) for timeout in (None, 60.0, None)]
        until(lambda: caller.client._resources.traffic.sent == 3, "all are sent")
        caller.signal(0, signal.SIGKILL)
        errors = [dies(call) for call in calls]
        errors += [dies(caller.begin_call(method)) for method in ("step_counters", "no_such_method")]
        assert {id(error) for error in errors} == {id(caller.client.dead)}
        assert len(caller.client._resources.calls) == 0


# ---- dead stays dead ----


def condemned(caller: Caller) -> EngineDeadError:
    """The client gives rank 0 up, which is stopped and so stays connected for a while."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    caller.signal(0, signal.SIGSTOP)
    stranger = context.socket(zmq.PUSH)
    stranger.connect(caller.client.endpoints.address("output"))
    stranger.send(b"\xc1")
    error = dies(caller.begin_read())
    assert "cannot be read" in error.cause
    context.destroy(linger=0)
    return error


@invariant(
    "I14",
    breaks=(
        Change("engine/client/sending.py", "self._resources.latch.check_open()", "pass"),
        Change(
            "engine/monitor.py",
            "if self._death is not None:\n    return False\nself._death = _twin(error)",
            "self._death, self._raised = _twin(error), lambda: None",
        ),
    ),
    kin=(*kin_of("I14"), "I15", "I16", "I17", "I18", "I30", "I32", "I37", "I39", "I40", "I22"),
)
@both_kinds
def test_a_dead_engine_takes_nothing_more_although_it_could_be_reached_and_its_cause_stays(kind: str) -> None:
    with serving(kind) as caller:
        error = condemned(caller)
        resources = caller.client._resources
        assert resources.reachable
        sent = resources.traffic.sent
        dead_for_all(caller, error)
        assert resources.traffic.sent == sent
        caller.signal(0, signal.SIGKILL)
        until(lambda: not caller.client.pids, "the monitor has seen the end")
        caller.client.shutdown()
        dead_for_all(caller, error)


@invariant(
    "I14",
    breaks=Change(AIO, "if not request_ids or self.dead is not None:", "if not request_ids:"),
    kin=kin_of("I14"),
)
@both_kinds
def test_an_abort_after_death_and_shutdown_does_nothing_although_it_is_the_first_call(kind: str) -> None:
    with serving(kind) as caller:
        killed(caller)
        until(lambda: caller.client.dead is not None, "the death is known")
        caller.client.shutdown()
        caller.abort("nobody")
        assert isinstance(caller.client.dead, EngineDeadError)
        assert caller.client.dead.cause == "killed by SIGKILL"


# ---- every client of an engine ----


SEEN_BY_ALL = ("SIGKILL", "exit 0", "exception in a step", "output socket lost")
"""Deaths that no client is the first to see, so that none is served for a while longer."""


@invariant(
    "I12",
    breaks=Change("engine/client/seats.py", "say(guest.news, word)", "pass"),
    kin=(*kin_of("I12"), "I39", "I40"),
)
@both_kinds
@pytest.mark.parametrize("cause", [cause for cause in CAUSES if cause.name in SEEN_BY_ALL], ids=str)
def test_a_client_that_does_not_own_the_engine_has_the_same_error(kind: str, cause: Cause) -> None:
    with vigil(kind, cause.act, client_count=2) as watch, joined(watch.caller) as guest:
        readers = [caller.begin_read() for caller in (watch.caller, guest) for _ in range(2)]
        call = guest.begin_call("step_counters")
        until(lambda: guest.client._resources.traffic.sent == 1, "the call is sent")
        cause.do(watch)
        errors = [dies(waiter) for waiter in (*readers, call)]
        assert {(error.culprit, error.cause) for error in errors} == {(cause.culprit, errors[0].cause)}
        assert cause.text in errors[0].cause
        dead_for_all(guest, errors[-1])
