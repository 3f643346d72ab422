"""Guests of both kinds: what is theirs, what they hear of a death, and that one that leaves, however, is forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from engine.client.aio import AsyncMPClient
from engine.client.base import MPClient
from engine.client.seats import ClientSeat
from engine.client.sync import SyncMPClient
from engine.config import Timeouts
from engine.errors import EngineDeadError, StartupError
from engine.messages import Outputs, Request, SamplingParams
from engine.model import reference
from engine.monitor import EngineStopped
from engine.ports import Port
from tests.engine.driving import begin
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
from tests.invariants.guests import joined
from tests.invariants.leavings import nothing_left

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
            assert guest.outputs_of("same")["same"][-1].finish_reason == "abort"
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
        for read in (owner.get_output_async, guest.get_output_async, lambda: asyncio.to_thread(plain.get_output)):
            batches: list[Outputs] = [await read() for _ in range(3)]
            assert [token for batch in batches for token in batch.outputs[0].token_ids] == golden
        assert len([task for task in asyncio.all_tasks() if task.get_name() == "engine-receiver"]) == 2
        for client in (guest, plain, owner):
            client.shutdown()

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
            assert client.client.pids == {}


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

    def says(self) -> object:
        assert self.told.poll(30), "it says nothing"
        return self.told.recv()

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self.process.close()
        self.told.close()


@pytest.mark.parametrize(("kind", "method"), [("plain", "fork"), ("asyncio", "fork"), ("asyncio", "spawn")])
def test_a_guest_that_is_killed_in_a_process_of_its_own_is_forgotten(kind: str, method: str, place: Path) -> None:
    with nothing_left(place), serving(kind, client_count=2) as caller:
        with caller.client.seat(1) as seat:
            lodger = Lodger(seat, kind, method)
        with contextlib.closing(lodger):
            assert lodger.says() == "served"
            assert caller.call("live_requests") == [[1, "same"]]
            lodger.process.kill()
            until(lambda: caller.call("live_requests") == [], "its request is dropped")
            caller.serve()


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


@pytest.mark.parametrize(("kind", "method"), [("plain", "fork"), ("asyncio", "fork")])
def test_the_owners_sigkill_reaches_all_guests_alike(kind: str, method: str, place: Path) -> None:
    here, there = multiprocessing.Pipe()

    def own() -> None:
        owner = SyncMPClient(config_for(2, timeouts=PATIENT, client_count=3), ForkFactory())
        for index in (1, 2):
            there.send(list(owner.pids.values()))
            with owner.seat(index) as seat:
                context: Any = multiprocessing.get_context(method)
                context.Process(target=lodge, args=(seat, kind, there)).start()
            if index == 1:
                owner.get_output(BOUND) if False else None
        threading.Event().wait()

    process = multiprocessing.get_context("fork").Process(target=own)
    process.start()
    there.close()
    heard: list[Any] = []
    with contextlib.closing(here):
        while heard.count("served") < 2:
            assert here.poll(30)
            heard.append(here.recv())
        process.kill()
        process.join()
        ends = []
        while len(ends) < 2:
            assert here.poll(30)
            ends.append(here.recv())
    assert ends == [("client", "the client that owns the engine is gone")] * 2
    pids = [pid for line in heard if isinstance(line, list) for pid in line]
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "all ranks are gone")


# ---- leaving ----


def shut_down(guest: Caller) -> None:
    guest.client.shutdown()


def dropped(guest: Caller) -> None:
    client = guest.client
    del guest.client
    del client


def deaf(guest: Caller) -> None:
    """Its own receiver ends; that is its own end, and nobody else's."""
    if isinstance(guest, LoopCaller):

        async def cancel() -> None:
            receivers = [task for task in asyncio.all_tasks() if task.get_name() == "engine-receiver"]
            receivers[-1].cancel()

        guest.begin(cancel()).result(BOUND)
