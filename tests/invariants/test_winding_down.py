"""I39 and I40: what a shutdown does to those who still wait: everybody has an answer, and it is really sent."""

from __future__ import annotations

import contextlib
import functools
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.core import EngineCore
from engine.errors import ExitCode, UtilityError
from engine.messages import FinishReason, Request, RequestOutput, SamplingParams, Welcome
from engine.model import reference
from engine.monitor import EngineStopped
from engine.ports import Port
from engine.rank import SHUTTING_DOWN, RankProcess
from tests.engine.driving import begin
from tests.engine.forks import replace
from tests.engine.wires import ahead, all_of, behind_the_order
from tests.invariants import Change, invariant
from tests.invariants.callers import BOUND, PROMPT, Call, Caller, both_kinds, dies, serving, tokens_of, until
from tests.invariants.gates import Bell, Gate
from tests.invariants.guests import joined
from tests.invariants.starts import LEAD
from tests.invariants.vigil import vigil

RANK, RESOURCES, PORTS = "engine/rank.py", "engine/client/resources.py", "engine/ports.py"

ORDER = "self._latch.stop(EngineStopped({}))"
REFUSED = "self.send([RequestOutput(message.request.request_id, [], FinishReason.ABORT, self._closing)])"
DEAD = "return self._resources.latch.error"

KIN = ("I1", "I11", "I33", "I37", "I38", "I40")


def ends(caller: Caller) -> tuple[dict[str, list[RequestOutput]], EngineStopped]:
    """All that is still to be read, by request, and the error behind it."""
    told: dict[str, list[RequestOutput]] = {}
    while True:
        call = caller.begin_read()
        error = call.exception(BOUND)
        if isinstance(error, EngineStopped):
            return told, error
        for output in call.result().outputs:
            told.setdefault(output.request_id, []).append(output)


# ---- I39: aborting ----


@invariant(
    "I39",
    breaks=Change(
        "engine/monitor.py",
        "ranks.stop(deadline, said)\nreturn order",
        "ranks.stop(deadline, said)\nreturn EngineDeadError(CLIENT_ROLE, order.cause)",
    ),
    kin=KIN,
)
@both_kinds
def test_everybody_who_waits_has_an_end_although_the_engine_gives_no_answer(kind: str) -> None:
    """Two readers, a call, and a request whose large array cannot leave; rank 0 stands still, so its time runs out."""
    with vigil(kind) as watch:
        watch.assemble()
        shutdown = begin(lambda: watch.caller.client.shutdown(0.3))
        errors = {name: dies(call) for name, call in watch.waiters.items()}
        shutdown.result(BOUND)
        assert {type(error) for error in errors.values()} == {EngineStopped}
        assert {str(error) for error in errors.values()} == {"engine is dead: client: the engine was shut down"}


@invariant(
    "I40",
    breaks=Change(RANK, "ports.send(core.close(SHUTTING_DOWN))", "core.close(SHUTTING_DOWN)"),
    kin=("I1", "I22", "I33", "I37", "I39"),
)
@invariant(
    "I40",
    breaks=Change(
        "engine/monitor.py",
        "if isinstance(error, EngineStopped):\n    error = _stop(ranks, latch, error, watchdog.sent)",
        "latch.set(error)\nif isinstance(error, EngineStopped):\n    error = _stop(ranks, latch, error, watchdog.sent)",
    ),
    kin=("I1", "I22", "I33", "I39"),
)
@pytest.mark.parametrize("size", [1, 2])
@both_kinds
def test_every_request_is_told_as_aborted_to_whoever_it_belongs_to(kind: str, size: int) -> None:
    """Those that run, those that wait for a place, and those of a guest."""
    with serving(kind, size, before=slowly, client_count=2, max_num_seqs=2) as caller, joined(caller) as guest:
        caller.add("a", 400)
        caller.read()
        for name in "bcd":
            caller.add(name, 400)
        for name in "abcd":
            guest.add(name, 400)
        begin(caller.client.shutdown).result(BOUND)
        for client in (caller, guest):
            told, _ = ends(client)
            assert {name: outputs[-1].finish_reason for name, outputs in told.items()} == dict.fromkeys(
                "abcd", FinishReason.ABORT
            )
        assert caller.factory.exits() == [ExitCode.STOPPED] * size


# ---- I39: draining ----


def slowly(role: str) -> None:
    """Every step takes a while."""
    whole = EngineCore.step

    def step(self: EngineCore, *args: Any) -> Any:
        threading.Event().wait(0.01)
        return whole(self, *args)

    replace(EngineCore, "step", step)


class Held:
    """An engine whose rank 0 holds before its third step, until a drain is ordered, and before its sixth."""

    def __init__(self, caller: Caller, guest: Caller, gates: list[Gate], bell: Bell) -> None:
        self.caller = caller
        self.guest = guest
        self.go_on = gates[1].open
        self._first = gates[0]
        self._bell = bell

    def drain(self, limit: float) -> Call:
        """Order it, in the middle of what is under way; on return rank 0 has begun it, and holds."""
        self._bell.wait()
        client = self.caller.client
        shutdown = begin(lambda: client.shutdown(limit, drain=True))
        until(lambda: client.dead is not None, "the drain is ordered")
        self._first.open()
        self._bell.wait()
        return shutdown


@contextlib.contextmanager
def held(kind: str) -> Iterator[Held]:
    with contextlib.ExitStack() as stack:
        gates = [stack.enter_context(contextlib.closing(Gate())) for _ in range(2)]
        bell = stack.enter_context(contextlib.closing(Bell()))

        def hold(gate: Gate) -> None:
            bell.ring()
            gate.wait()

        hooks = [
            ahead(LEAD, EngineCore, "step", functools.partial(hold, gate), nth)
            for gate, nth in zip(gates, (3, 6), strict=True)
        ]
        keep = [*(gate.fileno() for gate in gates), bell.fileno()]
        caller = stack.enter_context(serving(kind, before=all_of(slowly, *hooks), keep=keep, client_count=2))
        guest = stack.enter_context(joined(caller))
        yield Held(caller, guest, gates, bell)


@invariant(
    "I39",
    breaks=(
        Change(
            RANK,
            "while (core.has_work() or ports.waiting or ports.expecting) and self._lifeline.draining:",
            "while False:",
        ),
        Change("engine/monitor.py", ORDER.format("limit, drain=drain"), ORDER.format("limit")),
        Change(PORTS, REFUSED, "pass"),
        Change("engine/client/base.py", f"{DEAD} or self._resources.latch.stopping", DEAD),
    ),
    kin=KIN,
)
@both_kinds
def test_a_drain_finishes_what_is_under_way_and_refuses_what_is_new(kind: str) -> None:
    with held(kind) as engine:
        caller, guest = engine.caller, engine.guest
        caller.add("mine", 40)
        guest.add("theirs", 40)
        shutdown = engine.drain(60.0)
        # To its owner the engine is closed at once; what others ask meanwhile is answered by the engine.
        late = Request("late", PROMPT, SamplingParams(4))
        assert isinstance(dies(caller.begin_add(late)), EngineStopped)
        assert isinstance(dies(caller.begin_call("step_counters")), EngineStopped)
        caller.abort("mine")
        guest.add("late")
        call = guest.begin_call("step_counters")
        engine.go_on()
        with pytest.raises(UtilityError, match=SHUTTING_DOWN):
            call.result(BOUND)
        mine, error = ends(caller)
        theirs, _ = ends(guest)
        golden = reference.greedy("tiny", PROMPT, 4)
        for tokens in (tokens_of(mine["mine"]), tokens_of(theirs["theirs"])):
            assert (len(tokens), tokens[:4]) == (40, golden)
        assert {name: outputs[-1].finish_reason for name, outputs in {**mine, **theirs}.items()} == {
            "mine": FinishReason.LENGTH,
            "theirs": FinishReason.LENGTH,
            "late": FinishReason.ABORT,
        }
        assert theirs["late"] == [RequestOutput("late", [], FinishReason.ABORT, SHUTTING_DOWN)]
        assert error.cause == "the engine was shut down"
        shutdown.result(BOUND)
        assert caller.factory.exits() == [ExitCode.STOPPED]


@invariant(
    "I39",
    breaks=Change("engine/lifeline.py", "return self._stop_until.later_by(-kept)", "return Deadline.never()"),
    kin=KIN,
)
@both_kinds
def test_a_drain_that_takes_too_long_ends_in_time_with_aborts(kind: str) -> None:
    with serving(kind, 2, before=slowly) as caller:
        caller.add("long", 400)
        caller.read()
        begin(lambda: caller.client.shutdown(1.2, drain=True)).result(BOUND)
        told, _ = ends(caller)
        assert told["long"][-1].finish_reason is FinishReason.ABORT
        assert caller.factory.exits() == [ExitCode.STOPPED] * 2


@invariant("I39", breaks=Change(RANK, "ports.expect(self._lifeline.said)", "pass"), kin=KIN)
@pytest.mark.parametrize("drain", [True, False])
@both_kinds
def test_what_was_sent_before_the_order_has_its_answer_although_the_order_came_first(kind: str, drain: bool) -> None:
    """The order comes over a pipe, what was sent before it by a thread of ZMQ."""
    with serving(kind, 2, before=behind_the_order) as caller:
        caller.add("a", 4)
        caller.add("b", 4)
        caller.abort("b")
        begin(lambda: caller.client.shutdown(drain=drain)).result(BOUND)
        told, _ = ends(caller)
        assert tokens_of(told["a"]) == (reference.greedy("tiny", PROMPT, 4) if drain else [])
        assert {name: outputs[-1].finish_reason for name, outputs in told.items()} == {
            "a": FinishReason.LENGTH if drain else FinishReason.ABORT,
            "b": FinishReason.ABORT,
        }
        assert caller.factory.exits() == [ExitCode.STOPPED] * 2


# ---- I40: really sent ----


class Middle:
    """The way from rank 0 to the client, byte by byte; from :meth:`hold` on nothing comes through until it may.

    If it is `narrow`, next to nothing is on the way meanwhile; else all of it is, and no longer with rank 0.
    """

    def __init__(self, folder: Path, *, narrow: bool) -> None:
        self.let_go = threading.Event()
        self.let_go.set()
        self._path = f"{folder}/middle"
        self._narrow = narrow
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._path)
        self._listener.listen()
        self._thread: threading.Thread | None = None

    def before(self, role: str) -> None:
        """The hook: rank 0 sends to here."""
        whole, path = Port.connect, self._path

        def connect(self: Port, input_address: str, output_address: str, welcome: Welcome) -> None:
            whole(self, input_address, f"ipc://{path}", welcome)

        replace(Port, "connect", connect)

    def lead_to(self, path: str) -> None:
        """The client's own socket."""
        self._thread = threading.Thread(target=self._run, args=(path,), daemon=True)
        self._thread.start()

    def hold(self) -> None:
        self.let_go.clear()

    def close(self) -> None:
        self.let_go.set()
        self._listener.close()
        if self._thread is not None:
            self._thread.join(BOUND)

    def _run(self, path: str) -> None:
        source, _ = self._listener.accept()
        with source, socket.socket(socket.AF_UNIX) as sink:
            sink.connect(path)
            stored = b""
            while True:
                shut = self._narrow and not self.let_go.is_set()
                ready, _, _ = select.select([sink] if shut else [sink, source], [], [], 0.01)
                for one in ready:
                    data = one.recv(65536)
                    if one is sink:
                        source.sendall(data)
                    stored += data if one is source else b""
                    if not data:
                        self.let_go.wait(BOUND)
                        sink.sendall(stored)
                        return
                if stored and self.let_go.is_set():
                    sink.sendall(stored)
                    stored = b""


MANY = [f"{number:02}{'x' * 20_000}" for number in range(40)]
"""Names of requests whose ends no buffer of the system takes in."""


@contextlib.contextmanager
def far_away(kind: str, folder: Path, bell: Bell, *, narrow: bool) -> Iterator[tuple[Caller, Middle, Call]]:
    """A client to whom rank 0 has such a way, amid its shutdown: all that is to be told is that many requests end.

    On entry rank 0 is about to close its sockets.
    """
    with contextlib.closing(Middle(folder, narrow=narrow)) as middle:
        hooks = all_of(middle.before, ahead(LEAD, RankProcess, "_close", bell.ring))
        with serving(kind, before=hooks, keep=[bell.fileno()]) as caller:
            middle.lead_to(caller.client.endpoints.path("output"))
            caller.call("pause_scheduler", "keep")
            for name in MANY:
                caller.add(name, 400)
            assert len(caller.call("live_requests")) == len(MANY)
            middle.hold()
            shutdown = begin(caller.client.shutdown)
            bell.wait()
            yield caller, middle, shutdown


def all_aborted(caller: Caller) -> None:
    told, _ = ends(caller)
    aborted = {name for name, outputs in told.items() if outputs[-1].finish_reason is FinishReason.ABORT}
    assert {name[:2] for name in aborted} == {name[:2] for name in MANY}


@invariant(
    "I40",
    breaks=Change(PORTS, "port.close(nobody_reads=nobody_reads or port.gone)", "port.close(nobody_reads=True)"),
    kin=("I1", "I5", "I39"),
)
@both_kinds
def test_abort_notices_leave_rank_0_although_nobody_takes_them_before_it_goes(kind: str, tmp_path: Path) -> None:
    with (
        contextlib.closing(Bell()) as bell,
        far_away(kind, tmp_path, bell, narrow=True) as (caller, middle, shutdown),
    ):
        middle.let_go.set()
        shutdown.result(BOUND)
        all_aborted(caller)


@invariant(
    "I40",
    breaks=(
        Change(RESOURCES, "if not self._await_the_rest():", "if True:"),
        Change(RANK, "self._note_links(ports)  # so that every client knows whether it has them all", "pass"),
    ),
    kin=("I1", "I5", "I39"),
)
@both_kinds
def test_abort_notices_are_read_although_they_are_on_their_way_when_the_engine_is_gone(
    kind: str, tmp_path: Path
) -> None:
    with (
        contextlib.closing(Bell()) as bell,
        far_away(kind, tmp_path, bell, narrow=False) as (caller, middle, shutdown),
    ):
        until(lambda: caller.factory.living() == [], "the engine is gone")
        middle.let_go.set()
        shutdown.result(BOUND)
        all_aborted(caller)
