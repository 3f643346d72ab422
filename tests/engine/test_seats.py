"""Several clients of one engine: each has its own, all hear of a death, and one that vanishes harms nobody."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest

from engine.client.seats import ClientSeat
from engine.client.sync import SyncMPClient
from engine.errors import EngineDeadError, StartupError
from engine.messages import FinishReason, Request, SamplingParams
from engine.model import reference
from engine.monitor import EngineStopped
from tests.engine.forks import ForkFactory, config_for

LONG = Request("same", [5, 6], SamplingParams(400))


def tokens(client: SyncMPClient, request: Request) -> list[int]:
    """All tokens of a request that is sent now, the only one of its client."""
    client.add_request(request)
    got: list[int] = []
    while True:
        for output in client.get_output(10).outputs:
            assert output.request_id == request.request_id
            got += output.token_ids
            if output.finish_reason is not None:
                assert output.finish_reason is FinishReason.LENGTH
                return got


def death(client: SyncMPClient) -> EngineDeadError:
    """The error after all outputs; a second read has the same."""
    errors: list[EngineDeadError] = []
    while len(errors) < 2:
        try:
            client.get_output(10)
        except EngineDeadError as error:
            errors.append(error)
    assert errors[0] is errors[1]
    assert client.dead is errors[0]
    return errors[0]


def lodge(seat: ClientSeat, told: Connection) -> None:
    """A guest's whole life in a process of its own: it serves itself, waits for the end, and says what it was."""
    guest = SyncMPClient.join(seat)
    told.send(tokens(guest, Request("same", [9], SamplingParams(3))))
    guest.add_request(LONG)
    guest.get_output(10)
    told.send("waiting")
    error = death(guest)
    guest.shutdown()
    told.send((error.culprit, error.cause, isinstance(error, EngineStopped)))


@contextlib.contextmanager
def lodger(seat: ClientSeat, method: str) -> Iterator[tuple[Connection, int]]:
    """Another process with that seat, begun by fork or spawn: what it tells, and its pid."""
    here, there = multiprocessing.Pipe(duplex=False)
    context: Any = multiprocessing.get_context(method)
    process = context.Process(target=lodge, args=(seat, there))
    process.start()
    seat.close()
    there.close()
    try:
        yield here, process.pid or 0
        process.join(10)
        assert process.exitcode is not None
    finally:
        process.kill()
        process.join()
        here.close()


def ask(told: Connection) -> object:
    assert told.poll(30)
    return told.recv()


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("victim", ["dp0.rank0", "dp0.rank1"])
def test_a_death_reaches_a_guest_in_another_process_with_the_same_cause(
    method: str, victim: str, factory: ForkFactory
) -> None:
    owner = SyncMPClient(config_for(2, client_count=2), factory)
    with lodger(owner.seat(1), method) as (told, _):
        assert ask(told) == reference.greedy("tiny", [9], 3)
        assert ask(told) == "waiting"
        assert tokens(owner, Request("same", [7], SamplingParams(3))) == reference.greedy("tiny", [7], 3)
        factory.processes[victim].send_signal(signal.SIGKILL)
        error = death(owner)
        assert (error.culprit, error.cause) == (victim, "killed by SIGKILL")
        assert ask(told) == (error.culprit, error.cause, False)
    owner.shutdown()


def test_the_owners_shutdown_is_told_to_the_guest_behind_its_aborts(factory: ForkFactory) -> None:
    owner = SyncMPClient(config_for(2, client_count=2), factory)
    guest = SyncMPClient.join(owner.seat(1))
    guest.add_request(LONG)
    guest.get_output(10)
    owner.shutdown()
    reasons: list[FinishReason | None] = []
    while FinishReason.ABORT not in reasons:
        reasons += [output.finish_reason for output in guest.get_output(10).outputs]
    assert set(reasons[:-1]) <= {None}
    error = death(guest)
    assert isinstance(error, EngineStopped)
    assert error.cause == "the engine was shut down"
    guest.shutdown()


def test_the_owners_sigkill_ends_the_guest_and_the_ranks(factory: ForkFactory) -> None:
    here, there = multiprocessing.Pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            owner = SyncMPClient(config_for(2, client_count=2), factory)
            process = multiprocessing.get_context("fork").Process(target=lodge, args=(owner.seat(1), there))
            process.start()
            there.send({"pids": [*owner.pids.values(), process.pid]})
            threading.Event().wait()
        os._exit(1)
    there.close()
    messages = [ask(here) for _ in range(3)]
    pids = next(message["pids"] for message in messages if isinstance(message, dict))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    said = ask(here)
    assert isinstance(said, tuple)
    assert said[0] in ("client", "dp0.rank0")
    await_true(lambda: not any(os.path.exists(f"/proc/{one}") for one in pids))


def await_true(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.mark.parametrize("how", ["killed", "shut down", "dropped"])
def test_a_guest_that_vanishes_harms_nobody_and_leaves_nothing(how: str, factory: ForkFactory) -> None:
    gc.collect()
    descriptors = len(os.listdir("/proc/self/fd"))
    owner = SyncMPClient(config_for(2, client_count=2), factory)
    if how == "killed":
        with lodger(owner.seat(1), "fork") as (told, pid):
            ask(told)
            assert ask(told) == "waiting"
            assert owner.live_requests() == [[1, "same"]]
            os.kill(pid, signal.SIGKILL)
    else:
        guest = SyncMPClient.join(owner.seat(1))
        guest.add_request(LONG)
        guest.get_output(10)
        assert owner.live_requests() == [[1, "same"]]
        if how == "shut down":
            guest.shutdown()
            with pytest.raises(EngineDeadError, match="this client of the engine was shut down"):
                guest.add_request(LONG)
        del guest
    await_true(lambda: owner.live_requests() == [])
    assert tokens(owner, Request("same", [7], SamplingParams(3))) == reference.greedy("tiny", [7], 3)
    owner.check_health()
    owner.shutdown()
    assert factory.exits() == [0, 0]
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("engine")] == []


def test_a_rank_that_stops_is_found_by_the_guest_alone_and_is_death_for_all(factory: ForkFactory) -> None:
    owner = SyncMPClient(config_for(1, client_count=2), factory)
    guest = SyncMPClient.join(owner.seat(1))
    guest.add_request(LONG)
    guest.get_output(10)
    factory.processes["dp0.rank0"].send_signal(signal.SIGSTOP)
    errors = [death(guest), death(owner)]
    assert [error.culprit for error in errors] == ["dp0.rank0"] * 2
    assert errors[0].cause == errors[1].cause
    guest.shutdown()
    owner.shutdown()


def test_a_seat_is_given_once_and_taken_once(factory: ForkFactory) -> None:
    owner = SyncMPClient(config_for(1, client_count=3), factory)
    for index in (0, 3, -1, "1", None):
        with pytest.raises(ValueError, match=r"client_index: got .*, expected 1 to 2"):
            owner.seat(index)  # type: ignore[arg-type]
    seat = owner.seat(1)
    with pytest.raises(ValueError, match="the seat of client 1 was given away already"):
        owner.seat(1)
    guest = SyncMPClient.join(seat)
    with pytest.raises(ValueError, match="the seat of client 1 was taken or closed already"):
        SyncMPClient.join(seat)
    with pytest.raises(ValueError, match="client 1 does not own the engine"):
        guest.seat(2)
    assert (owner.client_index, guest.client_index) == (0, 1)
    guest.shutdown()
    owner.shutdown()
    with pytest.raises(EngineDeadError, match="shut down"):
        owner.seat(2)


def test_an_engine_without_further_clients_has_no_seat(factory: ForkFactory) -> None:
    owner = SyncMPClient(config_for(1), factory)
    with pytest.raises(ValueError, match="expected a larger client_count"):
        owner.seat(1)
    owner.shutdown()


def test_a_guest_that_comes_after_the_end_is_told_of_it(factory: ForkFactory) -> None:
    owner = SyncMPClient(config_for(1, client_count=2), factory)
    seat = owner.seat(1)
    factory.processes["dp0.rank0"].send_signal(signal.SIGKILL)
    death(owner)
    with pytest.raises(StartupError, match="killed by SIGKILL") as caught:
        SyncMPClient.join(seat)
    assert caught.value.culprit == "dp0.rank0"
    owner.shutdown()
