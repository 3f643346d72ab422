"""Several clients of one engine: each gets its own, one that leaves harms nobody, a death reaches all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import zmq
import zmq.utils.monitor

from engine.core import EngineCore, StepResult
from engine.errors import ExitCode
from engine.messages import ENGINE_CORE_DEAD, FinishReason, MessageType, RequestOutput, UtilityOutput
from engine.model import reference
from engine.ports import Ports
from tests.engine import wires
from tests.engine.bare import bare, finals, tokens_of
from tests.engine.forks import ForkFactory, replace
from tests.engine.peers import PATIENCE, Peer

PROMPT = [1, 2, 3]
FOREVER = 400


@pytest.mark.parametrize("size", [1, 2])
def test_the_same_ids_of_two_clients_are_different_requests(size: int, tmp_path: Path, factory: ForkFactory) -> None:
    with bare(tmp_path, factory, size, 2) as engine:
        engine.until_ready()
        one, two = engine.peers
        one.ask("same", PROMPT, 6)
        two.ask("same", [4, 5], FOREVER)
        one.call(7)
        two.call(7, "live_requests")
        two.abort("same")
        replies = []
        for peer in (one, two):
            replies += [end for end in finals(peer, 2) if isinstance(end, UtilityOutput)]
        assert [reply.call_id for reply in replies] == [7, 7]
        assert [1, "same"] in replies[1].result
        one.ask("again", PROMPT, 3)
        assert tokens_of(one, "again") == {"again": (reference.greedy("tiny", PROMPT, 3), FinishReason.LENGTH)}


def test_each_client_has_a_row_of_its_own_in_the_pulse_table(tmp_path: Path, factory: ForkFactory) -> None:
    with bare(tmp_path, factory, 2, 2) as engine:
        engine.until_ready()
        one, two = engine.peers
        one.ask("a", PROMPT, 2)
        two.abort("nothing")
        two.send(MessageType.ADD, [2, ["bad", 5], 1])
        tokens_of(one, "a")
        assert finals(two, 1)[0].error is not None  # type: ignore[union-attr]
        engine.await_that(lambda: all(not reading.busy for reading in engine.pulses.read()))
        engine.await_that(lambda: engine.pulses.link(1).taken == 2)
        assert (engine.pulses.link(0).taken, engine.pulses.link(0).sent) == (1, 2)
        assert (engine.pulses.link(1).taken, engine.pulses.link(1).sent) == (2, 1)


def disconnected(peer: Peer) -> Callable[[], bool]:
    """Whether rank 0 has let go of the client's output, asked from now on."""
    monitor = peer.output.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    return lambda: bool(monitor.poll(PATIENCE))


@pytest.mark.parametrize("size", [1, 2])
def test_an_idle_engine_lets_go_of_a_client_that_has_left_and_serves_the_others(
    size: int, tmp_path: Path, factory: ForkFactory
) -> None:
    with bare(tmp_path, factory, size, 3) as engine:
        engine.until_ready()
        one, two, three = engine.peers
        let_go = disconnected(two)
        engine.gone(1)
        assert let_go()
        before = engine.pulses.read()
        assert [reading.begun for reading in before] == [0] * size  # nobody needed a step for that
        for peer in (one, three):
            peer.ask("a", PROMPT, 3)
            assert tokens_of(peer, "a") == {"a": (reference.greedy("tiny", PROMPT, 3), FinishReason.LENGTH)}
        engine.gone(1)
        engine.stop()
        assert engine.ended() == [ExitCode.STOPPED] * size


@pytest.mark.parametrize("size", [1, 2])
def test_what_a_client_that_has_left_owned_is_aborted_on_all_ranks(
    size: int, tmp_path: Path, factory: ForkFactory
) -> None:
    with bare(tmp_path, factory, size, 2, num_pages=64) as engine:
        engine.until_ready()
        one, two = engine.peers
        one.ask("kept", PROMPT, 40)
        for index in range(20):  # more than run at once, so some wait
            two.ask(f"dropped {index}", PROMPT, 100)
        one.read()
        two.read()
        engine.gone(1)
        # The ranks compare every step, so this also says that all of them did the same.
        assert tokens_of(one, "kept")["kept"][1] == FinishReason.LENGTH
        one.call(7, "live_requests")
        assert finals(one, 1) == [UtilityOutput(7, None, [])]
        one.ask("all of the pages", PROMPT, 509)
        assert one.read().outputs[0].error is None
        engine.stop()
        assert engine.ended() == [ExitCode.STOPPED] * size


def test_a_client_that_leaves_while_paused_is_dropped_too(tmp_path: Path, factory: ForkFactory) -> None:
    with bare(tmp_path, factory, 2, 2) as engine:
        engine.until_ready()
        one, two = engine.peers
        two.ask("frozen", PROMPT, FOREVER)
        two.call(7, "pause_scheduler", "keep")
        assert finals(two, 1) == [UtilityOutput(7)]
        let_go = disconnected(two)
        engine.gone(1)
        assert let_go()
        one.call(8, "resume_scheduler")
        one.call(9, "live_requests")
        assert finals(one, 2) == [UtilityOutput(8), UtilityOutput(9, None, [])]


def failing_step(number: int) -> Callable[[str], None]:
    def fail() -> None:
        raise ValueError("the step went wrong")

    return wires.ahead("dp0.rank0", EngineCore, "step", fail, nth=number)


def until_dead(peer: Peer) -> list[RequestOutput]:
    """What comes before the dead frame, which must come."""
    found: list[RequestOutput] = []
    while True:
        frames = peer.read_frames()
        if frames == [ENGINE_CORE_DEAD]:
            return found
        found += peer.decoded(frames).outputs


@pytest.mark.parametrize("size", [1, 2])
def test_a_dying_rank_0_tells_every_client_behind_its_outputs(size: int, tmp_path: Path) -> None:
    with bare(tmp_path, ForkFactory(failing_step(4)), size, 3) as engine:
        engine.until_ready()
        one, two, _ = engine.peers
        one.ask("a", PROMPT, FOREVER)
        one.read()
        two.ask("b", PROMPT, FOREVER)
        assert engine.ended()[0] == ExitCode.OWN_FAILURE
        assert [token for output in until_dead(one) for token in output.token_ids] == reference.greedy(
            "tiny", PROMPT, 3
        )[1:]
        for peer in engine.peers[1:]:
            assert {output.request_id for output in until_dead(peer)} <= {"b"}


def test_an_output_socket_that_is_closed_under_rank_0_is_its_death_and_the_others_hear_of_it(tmp_path: Path) -> None:
    def before(role: str) -> None:
        whole, calls = Ports.send, iter(range(1, 1000))

        def send(self: Ports, result: StepResult) -> None:
            if next(calls) == 3:
                self._ports[0].output.close(linger=0)
            whole(self, result)

        replace(Ports, "send", send)

    with bare(tmp_path, ForkFactory(before), 1, 2) as engine:
        engine.until_ready()
        one, two = engine.peers
        two.ask("b", PROMPT, FOREVER)
        two.read()
        one.ask("a", PROMPT, FOREVER)
        assert engine.ended() == [ExitCode.OWN_FAILURE]
        report = engine.first.failed
        assert report is not None
        assert report.culprit == "dp0.rank0"
        assert "ZMQError" in report.cause
        until_dead(two)


def test_rank_0_leaves_with_its_code_although_nobody_can_be_told(tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no more sockets")

    before = wires.all_of(
        failing_step(1),
        wires.instead("dp0.rank0", Ports, "send_dead", refuse),
        wires.instead("dp0.rank0", Ports, "close", refuse),
    )
    with bare(tmp_path, ForkFactory(before)) as engine:
        engine.until_ready()
        engine.peers[0].ask("a", PROMPT, 3)
        assert engine.ended() == [ExitCode.OWN_FAILURE]
