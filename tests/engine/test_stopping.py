"""Orderly stops: everybody who waits for something gets an answer before rank 0 leaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from engine.core import EngineCore
from engine.errors import ExitCode
from engine.messages import CLIENT_ROLE, ENGINE_CORE_DEAD, FinishReason, RequestOutput, UtilityOutput
from engine.model import reference
from engine.rank import SHUTTING_DOWN
from tests.engine import wires
from tests.engine.bare import bare, finals, tokens_of
from tests.engine.forks import SHORT, ForkFactory, replace
from tests.engine.peers import Peer

PROMPT = [1, 2, 3]
CLOSED = f"Call to {{}} method failed: {SHUTTING_DOWN}"
PATIENT = msgspec.structs.replace(SHORT, step=30.0, stall=30.0, shutdown=60.0)


def holding(step: int, path: Path, role: str = "dp0.rank0") -> Callable[[str], None]:
    """`role` holds before the step of that number until the file is there."""
    return wires.ahead(role, EngineCore, "step", lambda: wires.await_path(path), nth=step)


def slow(seconds: float) -> Callable[[str], None]:
    def before(role: str) -> None:
        whole = EngineCore.step

        def step(self: EngineCore, *args: object) -> object:
            time.sleep(seconds)
            return whole(self, *args)  # type: ignore[arg-type]

        replace(EngineCore, "step", step)

    return before


@pytest.mark.parametrize("size", [1, 2])
def test_what_is_under_way_is_told_as_aborted_to_every_client(size: int, tmp_path: Path, factory: ForkFactory) -> None:
    with bare(tmp_path, factory, size, 2) as engine:
        engine.until_ready()
        for peer in engine.peers:
            peer.ask("a", PROMPT, 400)
            peer.ask("b", PROMPT, 400)
            peer.read()
        engine.peers[1].call(7, "pause_scheduler", "wait")
        engine.peers[1].call(8, "is_scheduler_paused")
        assert finals(engine.peers[1], 1) == [UtilityOutput(8, None, True)]
        engine.stop()
        assert engine.ended() == [ExitCode.STOPPED] * size
        ends = finals(engine.peers[0], 2)
        assert {(end.request_id, end.finish_reason) for end in ends if isinstance(end, RequestOutput)} == {
            ("a", FinishReason.ABORT),
            ("b", FinishReason.ABORT),
        }
        last = finals(engine.peers[1], 3)
        assert [type(one) for one in last] == [RequestOutput, RequestOutput, UtilityOutput]
        assert last[2] == UtilityOutput(7, CLOSED.format("pause_scheduler"))
        assert not any(peer.output.poll(0) for peer in engine.peers)  # no dead frame: nobody has failed


def test_an_idle_engine_leaves_at_once(tmp_path: Path, factory: ForkFactory) -> None:
    with bare(tmp_path, factory, 2) as engine:
        engine.until_ready()
        engine.stop(60.0)
        assert engine.ended() == [ExitCode.STOPPED] * 2


def more_in_the_socket(folder: Path) -> Callable[[str], None]:
    """Step 2 says in a file that it has run, and ends when another is there and the client's socket holds something."""

    def before(role: str) -> None:
        whole, calls = EngineCore.step, iter(range(1, 1000))

        def step(self: EngineCore, messages: object, late_aborts: object = frozenset) -> object:
            result = whole(self, messages, late_aborts)  # type: ignore[arg-type]
            if next(calls) == 2:
                (folder / "held").touch()
                wires.await_path(folder / "go")
                assert late_aborts.__self__._ports[0].input.poll(3000)  # type: ignore[attr-defined]
            return result

        replace(EngineCore, "step", step)

    return before


def test_what_was_sent_and_not_taken_when_the_stop_comes_is_answered(tmp_path: Path) -> None:
    with bare(tmp_path, ForkFactory(more_in_the_socket(tmp_path))) as engine:
        engine.until_ready()
        (peer,) = engine.peers
        peer.ask("a", PROMPT, 400)
        peer.read()
        wires.await_path(tmp_path / "held")
        peer.ask("b", PROMPT, 4)
        engine.stop()
        (tmp_path / "go").touch()
        assert engine.ended() == [ExitCode.STOPPED]
        assert {end.request_id: end for end in finals(peer, 2) if isinstance(end, RequestOutput)} == {
            "a": RequestOutput("a", [], FinishReason.ABORT),
            "b": RequestOutput("b", [], FinishReason.ABORT, SHUTTING_DOWN),
        }


def test_what_was_sent_and_not_taken_when_a_drain_begins_is_still_served(tmp_path: Path) -> None:
    with bare(tmp_path, ForkFactory(more_in_the_socket(tmp_path))) as engine:
        engine.until_ready()
        (peer,) = engine.peers
        peer.ask("a", PROMPT, 5)
        peer.read()
        wires.await_path(tmp_path / "held")
        peer.ask("b", PROMPT, 4)
        engine.stop(20.0, drain=True)
        (tmp_path / "go").touch()
        assert tokens_of(peer, "a", "b") == {
            "a": (reference.greedy("tiny", PROMPT, 5)[1:], FinishReason.LENGTH),
            "b": (reference.greedy("tiny", PROMPT, 4), FinishReason.LENGTH),
        }
        assert engine.ended() == [ExitCode.STOPPED]


@pytest.mark.parametrize("size", [1, 2])
def test_a_drain_finishes_what_is_under_way_and_answers_what_comes_later(size: int, tmp_path: Path) -> None:
    factory = ForkFactory(wires.all_of(holding(3, tmp_path / "go"), slow(0.01)))
    with bare(tmp_path, factory, size, 2) as engine:
        engine.until_ready()
        peer, other = engine.peers
        peer.ask("long", PROMPT, 25)
        other.ask("unwanted", PROMPT, 400)
        for _ in range(2):
            peer.read()
        engine.stop(20.0, drain=True)
        (tmp_path / "go").touch()
        peer.read()
        peer.read()  # of a step after the third, so the drain has begun
        peer.ask("late", PROMPT, 4)
        peer.call(7)
        other.ask("late", PROMPT, 4)
        other.abort("unwanted")
        found = {"long": [], "late": []}  # type: dict[str, list[int]]
        reply = None
        ends: dict[str, RequestOutput] = {}
        while len(ends) < 2 or reply is None:
            record = peer.read()
            reply = record.utility or reply
            for output in record.outputs:
                found[output.request_id] += output.token_ids
                if output.finish_reason is not None:
                    ends[output.request_id] = output
        assert found["long"] == reference.greedy("tiny", PROMPT, 25)[4:]
        assert ends["long"].finish_reason == FinishReason.LENGTH
        assert ends["late"] == RequestOutput("late", [], FinishReason.ABORT, SHUTTING_DOWN)
        assert list(ends) == ["late", "long"]
        assert reply == UtilityOutput(7, CLOSED.format("step_counters"))
        others = {end.request_id: end.finish_reason for end in finals(other, 2) if isinstance(end, RequestOutput)}
        assert others == {"late": FinishReason.ABORT, "unwanted": FinishReason.ABORT}
        assert engine.ended() == [ExitCode.STOPPED] * size


def test_a_drain_that_takes_too_long_ends_in_time_with_aborts_that_arrive(tmp_path: Path) -> None:
    with bare(tmp_path, ForkFactory(slow(0.05)), 2) as engine:
        engine.until_ready()
        (peer,) = engine.peers
        peer.ask("a", PROMPT, 400)
        peer.read()
        began = time.monotonic()
        engine.stop(1.0, drain=True)
        assert finals(peer, 1) == [RequestOutput("a", [], FinishReason.ABORT)]
        assert 0.4 < time.monotonic() - began < 1.0
        assert engine.ended() == [ExitCode.STOPPED] * 2


def test_what_a_pause_has_frozen_is_no_reason_to_drain_for_ever(tmp_path: Path, factory: ForkFactory) -> None:
    with bare(tmp_path, factory, 2) as engine:
        engine.until_ready()
        (peer,) = engine.peers
        peer.ask("a", PROMPT, 400)
        peer.call(7, "pause_scheduler", "keep")
        assert finals(peer, 1) == [UtilityOutput(7)]
        peer.ask("b", PROMPT, 4)
        peer.call(8, "is_scheduler_paused")
        assert finals(peer, 1) == [UtilityOutput(8, None, True)]
        engine.stop(60.0, drain=True)
        assert engine.ended() == [ExitCode.STOPPED] * 2
        assert {end.request_id for end in finals(peer, 2) if isinstance(end, RequestOutput)} == {"a", "b"}


def draining(peer: Peer) -> None:
    """Until it is certain that the engine drains: a call is answered so."""
    call_id = 100
    while True:
        peer.call(call_id, "is_scheduler_paused")
        (reply,) = (one for one in finals(peer, 1) if isinstance(one, UtilityOutput))
        if reply.failure is not None:
            return
        call_id += 1


def test_a_failure_during_a_drain_ends_it_at_once(tmp_path: Path) -> None:
    with bare(tmp_path, ForkFactory(slow(0.01)), 2) as engine:
        engine.until_ready()
        (peer,) = engine.peers
        peer.ask("a", PROMPT, 400)
        peer.read()
        engine.stop(60.0, drain=True)
        draining(peer)
        engine.fail("no more")
        assert engine.ended() == [ExitCode.PEER_FAILED] * 2
        frames = peer.read_frames()
        while frames != [ENGINE_CORE_DEAD]:
            frames = peer.read_frames()
        assert engine.first.failed is not None
        assert (engine.first.failed.culprit, engine.first.failed.cause) == (CLIENT_ROLE, "no more")


def test_a_launcher_that_goes_during_a_drain_ends_it_at_once(tmp_path: Path) -> None:
    with bare(tmp_path, ForkFactory(slow(0.01))) as engine:
        engine.until_ready()
        (peer,) = engine.peers
        peer.ask("a", PROMPT, 400)
        peer.read()
        engine.stop(60.0, drain=True)
        draining(peer)
        engine.orphan()
        assert engine.ended() == [ExitCode.LAUNCHER_GONE]


def test_a_second_stop_gives_up_the_drain(tmp_path: Path) -> None:
    with bare(tmp_path, ForkFactory(slow(0.01)), 2) as engine:
        engine.until_ready()
        (peer,) = engine.peers
        peer.ask("a", PROMPT, 400)
        peer.read()
        engine.stop(60.0, drain=True)
        draining(peer)
        engine.stop(60.0)
        assert finals(peer, 1) == [RequestOutput("a", [], FinishReason.ABORT)]
        assert engine.ended() == [ExitCode.STOPPED] * 2


def stuck(role: str) -> None:
    """Every step is one that never ends."""
    replace(EngineCore, "step", lambda self, *args: threading.Event().wait())


@pytest.mark.parametrize("drain", [False, True])
def test_a_rank_0_that_is_stuck_leaves_at_the_limit_of_the_notice(drain: bool, tmp_path: Path) -> None:
    with bare(tmp_path, ForkFactory(stuck), timeouts=PATIENT) as engine:
        engine.until_ready()
        engine.peers[0].ask("a", PROMPT, 4)
        engine.await_that(lambda: engine.pulses.read()[0].busy)
        began = time.monotonic()
        engine.stop(0.3, drain=drain)
        assert engine.ended() == [ExitCode.STOPPED]
        assert 0.3 < time.monotonic() - began < 3.0


def test_a_rank_0_that_is_stuck_in_a_drain_leaves_when_the_engine_fails_after_all(tmp_path: Path) -> None:
    with bare(tmp_path, ForkFactory(stuck), timeouts=PATIENT) as engine:
        engine.until_ready()
        engine.peers[0].ask("a", PROMPT, 4)
        engine.await_that(lambda: engine.pulses.read()[0].busy)
        engine.stop(60.0, drain=True)
        engine.await_that(lambda: engine.unread() == 0)
        engine.fail("no more")
        assert engine.ended() == [ExitCode.PEER_FAILED]
        assert engine.first.failed is not None
        assert engine.first.failed.cause == "no more"
