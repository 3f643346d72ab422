"""Guests of both kinds: what is theirs, what they hear of a death, and that one that leaves, however, is forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import multiprocessing
import os
import signal
import tempfile
import threading
import weakref
from collections.abc import Awaitable, Callable
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.client.aio import AsyncMPClient
from engine.client.base import MPClient
from engine.client.seats import ClientSeat, NewsReader
from engine.client.sync import SyncMPClient
from engine.errors import EngineDeadError, StartupError
from engine.messages import FinishReason, Outputs, Request, SamplingParams
from engine.model import reference
from engine.monitor import EngineStopped
from engine.ports import Port
from tests.engine.census import Census
from tests.engine.forks import SHORT, ForkFactory, config_for
from tests.engine.wires import instead
from tests.invariants.callers import (
    BOUND,
    PATIENT,
    PROMPT,
    Caller,
    LoopCaller,
    both_kinds,
    dies,
    serving,
    tokens_of,
    until,
)
from tests.invariants.guests import LoopGuest, PlainGuest, joined
from tests.invariants.leavings import await_gone, nothing_left

FOREVER = 400


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the engines of a test make their private directories."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


# ---- whose is what ----


@both_kinds
def test_the_same_ids_of_two_clients_are_served_apart(kind: str, place: Path) -> None:
    with nothing_left(place), serving(kind, 2, client_count=3, max_num_seqs=2) as caller:
        with joined(caller) as guest:
            clients = {caller: PROMPT, guest: [9, 8]}
            for client, prompt in clients.items():
                for name in "ab":
                    client.add(name, 6, prompt)
            for client, prompt in clients.items():
                for outputs in client.outputs_of("a", "b").values():
                    assert tokens_of(outputs) == reference.greedy("tiny", prompt, 6)
            for client in clients:
                client.add("same", FOREVER)
                client.read()
            # An abort, a reply and an id that is under way are one client's own.
            guest.abort("same")
            assert guest.outputs_of("same")["same"][-1].finish_reason is FinishReason.ABORT
            assert guest.call("live_requests") == [[0, "same"]]
            caller.abort("same")
            caller.outputs_of("same")
        assert caller.call("live_requests") == []


def test_an_asyncio_client_and_a_plain_one_share_an_engine_and_a_loop(place: Path, factory: ForkFactory) -> None:
    async def run() -> None:
        owner = AsyncMPClient(config_for(1, timeouts=PATIENT, client_count=3), factory)
        guest = AsyncMPClient.join(owner.seat(1))
        plain = await asyncio.to_thread(SyncMPClient.join, owner.seat(2))
        for client in (owner, guest):
            await client.add_request_async(Request("same", PROMPT, SamplingParams(3)))
        await asyncio.to_thread(plain.add_request, Request("same", PROMPT, SamplingParams(3)))
        golden = reference.greedy("tiny", PROMPT, 3)
        reads: list[Callable[[], Awaitable[Outputs]]] = [owner.get_output_async, guest.get_output_async]
        reads.append(functools.partial(asyncio.to_thread, plain.get_output))
        for read in reads:
            batches = [await read() for _ in range(3)]
            assert [token for batch in batches for token in batch.outputs[0].token_ids] == golden
        assert len([task for task in asyncio.all_tasks() if task.get_name() == "engine-receiver"]) == 2
        everybody: list[MPClient] = [guest, plain, owner]
        for one in everybody:
            one.shutdown()

    with nothing_left(place):
        asyncio.run(asyncio.wait_for(run(), 2 * BOUND))


# ---- one death for all ----

DEATHS: dict[str, tuple[Callable[[Caller], None], str, str]] = {
    "rank 0 killed": (lambda caller: caller.signal(0, signal.SIGKILL), "dp0.rank0", "killed by SIGKILL"),
    "rank 1 killed": (lambda caller: caller.signal(1, signal.SIGKILL), "dp0.rank1", "killed by SIGKILL"),
    "shut down": (lambda caller: caller.client.shutdown(), "client", "the engine was shut down"),
}


@pytest.mark.parametrize("death", DEATHS)
@both_kinds
def test_a_death_is_the_same_for_all_clients_and_for_every_later_call(kind: str, death: str, place: Path) -> None:
    act, culprit, cause = DEATHS[death]
    with nothing_left(place), serving(kind, 2, client_count=2) as caller, joined(caller) as guest:
        for client in (caller, guest):
            client.serve()
        waiting = {client: (client.begin_read(), client.begin_read()) for client in (caller, guest)}
        act(caller)
        for client, calls in waiting.items():
            errors = [dies(call) for call in (*calls, client.begin_read(), client.begin_call("step_counters"))]
            assert {id(error) for error in errors} == {id(errors[0])}
            assert (errors[0].culprit, errors[0].cause) == (culprit, cause)
            assert isinstance(errors[0], EngineStopped) is (death == "shut down")
        for client in waiting:
            until(lambda client=client: client.client.pids == {}, "all ranks are gone")  # type: ignore[misc]


@both_kinds
def test_the_owners_shutdown_is_told_to_the_guest_behind_its_aborts(kind: str, place: Path) -> None:
    with nothing_left(place), serving(kind, 2, client_count=2) as caller, joined(caller) as guest:
        guest.add("a", FOREVER)
        guest.read()
        caller.client.shutdown()
        assert guest.outputs_of("a")["a"][-1].finish_reason is FinishReason.ABORT
        error = dies(guest.begin_read())
        assert isinstance(error, EngineStopped)
        assert error.cause == "the engine was shut down"


# ---- in other processes ----


def lodge(seat: ClientSeat, kind: str, told: Connection) -> None:
    """A guest in a process of its own: it is served once, waits for the end with a request under way, and tells it."""
    if kind == "asyncio":
        asyncio.run(_lodge_on_a_loop(seat, told))
        return
    guest = SyncMPClient.join(seat)
    guest.add_request(Request("same", PROMPT, SamplingParams(FOREVER)))
    guest.get_output(BOUND)
    told.send("served")
    try:
        while True:
            guest.get_output(60)
    except EngineDeadError as error:
        told.send((error.culprit, error.cause))
    guest.shutdown()


async def _lodge_on_a_loop(seat: ClientSeat, told: Connection) -> None:
    guest = AsyncMPClient.join(seat)
    await guest.add_request_async(Request("same", PROMPT, SamplingParams(FOREVER)))
    await guest.get_output_async()
    told.send("served")
    try:
        while True:
            await guest.get_output_async()
    except EngineDeadError as error:
        told.send((error.culprit, error.cause))
    guest.shutdown()


class Lodger:
    """Such a process."""

    def __init__(self, seat: ClientSeat, kind: str, method: str) -> None:
        self.told, there = multiprocessing.Pipe(duplex=False)
        context: Any = multiprocessing.get_context(method)
        self.process = context.Process(target=lodge, args=(seat, kind, there), daemon=True)
        self.process.start()
        there.close()

    def says(self) -> Any:
        return heard(self.told)

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self.process.close()
        self.told.close()


@pytest.mark.parametrize(("kind", "method"), [("plain", "fork"), ("asyncio", "fork"), ("asyncio", "spawn")])
def test_a_guest_that_is_killed_in_a_process_of_its_own_is_forgotten(kind: str, method: str, place: Path) -> None:
    resource_tracker.ensure_running()  # it stays, as spawning has it
    with nothing_left(place), serving(kind, client_count=2) as caller:
        with caller.client.seat(1) as seat:
            lodger = Lodger(seat, kind, method)
        with contextlib.closing(lodger):
            assert lodger.says() == "served"
            assert caller.call("live_requests") == [[1, "same"]]
            lodger.process.kill()
            until(lambda: caller.call("live_requests") == [], "its request is dropped")
            caller.serve()


@pytest.mark.parametrize(("kind", "method"), [("plain", "fork"), ("plain", "spawn"), ("asyncio", "spawn")])
def test_a_death_reaches_a_guest_in_a_process_of_its_own_with_the_same_cause(
    kind: str, method: str, place: Path
) -> None:
    resource_tracker.ensure_running()
    with nothing_left(place), serving(kind, 2, client_count=2) as caller:
        with caller.client.seat(1) as seat:
            lodger = Lodger(seat, kind, method)
        with contextlib.closing(lodger):
            assert lodger.says() == "served"
            caller.serve()
            caller.signal(1, signal.SIGKILL)
            error = dies(caller.begin_read())
            assert lodger.says() == (error.culprit, error.cause) == ("dp0.rank1", "killed by SIGKILL")


@both_kinds
def test_a_guest_is_forgotten_although_a_sibling_has_copies_of_its_pipes(kind: str, place: Path) -> None:
    """As when all seats are made first and then all processes forked: every child has every seat."""
    with nothing_left(place), serving("plain", client_count=4) as caller, contextlib.ExitStack() as stack:
        seats = [stack.enter_context(caller.client.seat(index)) for index in (1, 2, 3)]
        guest = SyncMPClient.join(seats[2])  # it shares the owner's process, and the others have its pipes
        lodgers = [stack.enter_context(contextlib.closing(Lodger(seat, kind, "fork"))) for seat in seats[:2]]
        guest.add_request(Request("same", PROMPT, SamplingParams(FOREVER)))
        for lodger in lodgers:
            assert lodger.says() == "served"
        lodgers[0].process.kill()
        until(lambda: [1, "same"] not in caller.call("live_requests"), "the request of the killed one is dropped")
        guest.shutdown()
        until(lambda: caller.call("live_requests") == [[2, "same"]], "the request of the one that left is dropped")
        caller.client.shutdown()
        assert lodgers[1].says() == ("client", "the engine was shut down")


def own(kind: str, guests: list[Connection], told: Connection) -> None:
    """An owner in a process of its own, with guests that are its children."""
    owner = SyncMPClient(config_for(2, timeouts=PATIENT, client_count=3), ForkFactory())
    pids = list(owner.pids.values())
    for index, guest in enumerate(guests, 1):
        with owner.seat(index) as seat:
            process = multiprocessing.get_context("fork").Process(target=lodge, args=(seat, kind, guest))
            process.start()
            pids.append(process.pid or 0)
    told.send(pids)
    threading.Event().wait()


@both_kinds
def test_the_owners_sigkill_is_the_same_death_for_all_guests_and_ends_the_ranks(kind: str, place: Path) -> None:
    with nothing_left(place), contextlib.ExitStack() as stack:
        ends = [multiprocessing.Pipe(duplex=False) for _ in range(3)]
        for pair in ends:
            for end in pair:
                stack.callback(end.close)
        (first, second, owner), there = zip(*ends, strict=True)
        process = multiprocessing.get_context("fork").Process(target=own, args=(kind, list(there[:2]), there[2]))
        process.start()
        try:
            assert [heard(guest) for guest in (first, second)] == ["served"] * 2
            pids = heard(owner)
        finally:
            process.kill()
            process.join()
            process.close()
        gone = ("client", "the client that owns the engine is gone")
        assert [heard(guest) for guest in (first, second)] == [gone] * 2
        await_gone(pids)


# ---- leaving ----


def shut_down(guest: Caller) -> None:
    guest.client.shutdown()


def dropped(guest: Caller) -> None:
    ghost = weakref.ref(guest.client)
    del guest.client
    until(lambda: ghost() is None, "it is collected")


def deaf(guest: Caller) -> None:
    """What it was sent cannot be understood: that is its own end, and nobody else's."""
    guest.client._resources.die(EngineDeadError("dp0.rank0", "sent what cannot be read"))
    dies(guest.begin_call("step_counters"))


@pytest.mark.parametrize("leave", [shut_down, dropped, deaf], ids=lambda leave: str(leave.__name__))
@both_kinds
def test_a_guest_that_leaves_harms_nobody_and_its_requests_are_dropped(
    kind: str, leave: Callable[[Caller], None], place: Path
) -> None:
    with nothing_left(place), serving(kind, 2, client_count=2) as caller:
        guest = make_guest(caller)
        caller.add("kept", FOREVER)
        for name in "abc":
            guest.add(name, FOREVER)
        guest.read()
        assert len(caller.call("live_requests")) == 4
        leave(guest)
        until(lambda: caller.call("live_requests") == [[0, "kept"]], "its requests are dropped")
        caller.abort("kept")
        assert caller.outputs_of("kept")["kept"][-1].finish_reason is FinishReason.ABORT
        caller.serve()
        caller.client.check_health()
        if leave is deaf:
            guest.client.shutdown()


def test_a_guest_that_its_own_watch_forsakes_counts_its_engine_as_dead(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no room")

    with nothing_left(place), serving("plain", client_count=2) as caller, joined(caller) as guest:
        guest.add("a", FOREVER)
        monkeypatch.setattr(NewsReader, "read", fail)
        guest.client._resources.watch.wake()  # type: ignore[union-attr]
        until(lambda: guest.client.dead is not None, "it is known")
        assert "its seat thread failed: MemoryError: no room" in str(guest.client.dead)
        until(lambda: caller.call("live_requests") == [], "its request is dropped")


@both_kinds
def test_a_rank_that_stops_while_only_the_guest_waits_is_death_for_all(kind: str, place: Path) -> None:
    with nothing_left(place), serving(kind, 2, client_count=2, timeouts=SHORT) as caller, joined(caller) as guest:
        caller.serve()
        guest.add("a", FOREVER)
        guest.read()
        caller.signal(1, signal.SIGSTOP)
        errors = [dies(client.begin_call("step_counters")) for client in (guest, caller)]
        assert {error.culprit for error in errors} == {"dp0.rank1"}
        assert errors[0].cause == errors[1].cause


# ---- seats ----


@both_kinds
def test_a_guest_that_is_never_welcomed_says_so_and_leaves_nothing(kind: str, place: Path) -> None:
    timeouts = msgspec.structs.replace(PATIENT, startup=1.0)
    deafness = instead("dp0.rank0", Port, "connect", connect_only_the_owner)
    with nothing_left(place), serving(kind, before=deafness, client_count=2, timeouts=timeouts) as caller:
        before = Census.now()
        with pytest.raises(StartupError, match="no welcome came within 1 s") as caught:
            make_guest(caller)
        assert caught.value.role == "dp0.rank0"
        until(lambda: len(Census.now().beyond(before)) == 0, "nothing of it is left")
        caller.serve()


_CONNECT = Port.connect


def connect_only_the_owner(port: Port, *addresses: Any) -> None:
    if port.client_index == 0:
        _CONNECT(port, *addresses)


@both_kinds
def test_a_seat_has_room_for_one_client_and_is_given_once(kind: str, place: Path) -> None:
    with nothing_left(place), serving(kind, client_count=3) as caller:
        owner = caller.client
        for index in (0, 3, -1, "1", None, True, 1.0):
            with pytest.raises(ValueError, match=rf"client_index: got {index!r}, expected 1 to 2"):
                owner.seat(index)  # type: ignore[arg-type]
        seat, closed = owner.seat(1), owner.seat(2)
        with pytest.raises(ValueError, match="the seat of client 1 was given away already"):
            owner.seat(1)
        guest = type(owner).join(seat)
        for taken in (seat, closed):
            taken.close()
            with pytest.raises(ValueError, match=f"the seat of client {taken.client_index} was taken or closed"):
                type(owner).join(taken)
        with pytest.raises(ValueError, match="client 1 does not own the engine, so it has no seats to give"):
            guest.seat(2)
        guest.shutdown()
        caller.serve()


def test_an_engine_without_further_clients_has_no_seat(place: Path) -> None:
    with nothing_left(place), serving("plain") as caller:
        with pytest.raises(ValueError, match="expected a larger client_count"):
            caller.client.seat(1)
        caller.serve()


@both_kinds
def test_a_guest_that_comes_after_the_end_is_told_of_it(kind: str, place: Path) -> None:
    with nothing_left(place), serving(kind, client_count=2) as caller:
        seat = caller.client.seat(1)
        caller.signal(0, signal.SIGKILL)
        dies(caller.begin_read())
        with pytest.raises(EngineDeadError, match="killed by SIGKILL"):
            caller.client.seat(1)
        with pytest.raises(StartupError, match="killed by SIGKILL") as caught:
            type(caller.client).join(seat)
        assert caught.value.culprit == "dp0.rank0"


def test_a_fork_of_a_guest_neither_has_the_seat_nor_gives_it_up(place: Path) -> None:
    with nothing_left(place), serving("plain", client_count=2) as caller, joined(caller) as guest:
        guest.add("a", FOREVER)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                guest.client.shutdown()
                with pytest.raises(EngineDeadError, match="a fork of the one that the engine belongs to"):
                    guest.client.check_health()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert caller.call("live_requests") == [[1, "a"]]
        guest.abort("a")
        guest.outputs_of("a")


def make_guest(caller: Caller) -> Caller:
    """A second client, which nobody else refers to."""
    return LoopGuest(caller) if isinstance(caller, LoopCaller) else PlainGuest(caller)  # type: ignore[arg-type]


def heard(end: Connection) -> Any:
    assert end.poll(30), "it says nothing"
    return end.recv()
