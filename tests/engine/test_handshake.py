"""The handshake itself: hellos, rounds, DONE. What it shares with the other relays is in `test_relays`."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import msgspec
import pytest
import zmq

from engine import relay
from engine.errors import ExitCode
from engine.llm import AsyncLLM
from engine.messages import SamplingParams
from engine.model import reference
from engine.relay import frames
from engine.relay.frames import FrameKind
from engine.relay.handshake import HandshakeRelay
from tests.engine import wires
from tests.engine.forks import SHORT, ForkFactory, config_for, replace

HASTY = msgspec.structs.replace(SHORT, handshake=0.7)
"""Deadlines for tests that wait for the handshake's."""


def at_kind(kind: FrameKind, change: wires.Change) -> wires.Before:
    """Rank 0 sends what `change` makes of every frame of that kind."""

    def before(role: str) -> None:
        if role == "dp0.rank0":
            whole = zmq.Socket.send

            def send(self: zmq.Socket[bytes], data: bytes, *rest: object, **options: object) -> object:
                if self.socket_type != zmq.PUB or frames.decode(data).kind is not kind:
                    return whole(self, data, *rest, **options)  # type: ignore[call-overload]
                for one in change(data):
                    whole(self, one, *rest, **options)  # type: ignore[call-overload]
                return None

            replace(zmq.Socket, "send", send)

    return before


def test_hellos_lost_before_anybody_has_joined_do_no_harm() -> None:
    factory = ForkFactory(wires.sending(FrameKind.HELLO, 1, wires.lost))
    tokens = asyncio.run(wires.first_tokens(factory, 2, relay="handshake"))
    assert tokens == reference.greedy("tiny", [1, 2, 3], 4)


def test_a_rank_that_never_hears_a_hello_is_named_by_all() -> None:
    factory = ForkFactory(wires.instead("dp0.rank2", HandshakeRelay, "connect", lambda self: None))
    error = wires.start_fails(factory, 3, relay="handshake", timeouts=HASTY)
    assert error.role == "dp0.rank2"
    assert "no hello reached dp0.rank2 in" in error.cause
    assert error.phase == "join"
    assert factory.exits() == [ExitCode.DEADLINE] * 3


def test_a_lost_done_frame_ends_at_the_deadline() -> None:
    error = wires.start_fails(ForkFactory(at_kind(FrameKind.DONE, wires.lost)), 2, relay="handshake", timeouts=HASTY)
    assert "no DONE frame" in error.cause
    assert error.role == "dp0.rank0"


@pytest.mark.parametrize("kind", [FrameKind.HELLO, FrameKind.DONE])
def test_rank_0_killed_in_the_handshake_is_named_and_the_others_leave_by_themselves(kind: FrameKind) -> None:
    factory = ForkFactory(at_kind(kind, wires.die))
    error = wires.start_fails(factory, 3, relay="handshake")
    assert error.role == "dp0.rank0"
    assert error.exit_code == -signal.SIGKILL
    assert "SIGKILL" in error.cause
    assert factory.exits() == [-signal.SIGKILL, ExitCode.PEER_FAILED, ExitCode.PEER_FAILED]


def test_a_foreign_frame_in_the_handshake_fails_the_start_on_every_rank() -> None:
    factory = ForkFactory(at_kind(FrameKind.DONE, lambda data: [frames.encode(FrameKind.HELLO, 1, 1), data]))
    error = wires.start_fails(factory, 2, relay="handshake")
    assert "foreign epoch" in error.cause
    assert error.role == "dp0.rank1"
    assert error.exit_code == ExitCode.OWN_FAILURE


def test_a_rank_that_fails_in_a_round_is_told_with_its_cause_by_all(tmp_path: Path) -> None:
    causes = wires.Causes(tmp_path)
    # The first hello that rank 2 hears is not of this run, so it fails in a round that the others leave with it.
    deaf = wires.instead("dp0.rank1", HandshakeRelay, "connect", lambda self: None)
    foreign = at_kind(FrameKind.HELLO, wires.foreign)
    factory = ForkFactory(wires.all_of(causes.before, deaf, foreign))
    error = wires.start_fails(factory, 3, relay="handshake")
    assert error.role == "dp0.rank2"
    assert "foreign epoch" in causes.of("dp0.rank2").cause
    assert {causes.of(f"dp0.rank{rank}").code for rank in range(2)} <= {ExitCode.PEER_FAILED, ExitCode.DEADLINE}


def test_one_rank_never_enters_the_relay() -> None:
    def before(role: str) -> None:
        def refuse(*_: object) -> None:
            raise AssertionError("the relay was entered")

        replace(relay, "create", refuse)

    assert asyncio.run(wires.first_tokens(ForkFactory(before), 1)) == reference.greedy("tiny", [1, 2, 3], 4)


@pytest.mark.parametrize("name", wires.SAFE)
def test_each_iteration_is_exactly_one_step_frame_and_an_idle_engine_sends_none(name: str, tmp_path: Path) -> None:
    log = tmp_path / "kinds"

    def before(role: str) -> None:
        if role == "dp0.rank0":
            whole = zmq.Socket.send

            def send(self: zmq.Socket[bytes], data: bytes, *rest: object, **options: object) -> object:
                result = whole(self, data, *rest, **options)  # type: ignore[call-overload]
                # After it: a queue that has no room yet refuses, and the frame is offered again.
                if data[:1] == bytes([frames.MAGIC]):
                    with log.open("a") as file:
                        file.write(f"{frames.decode(data)}\n")
                return result

            replace(zmq.Socket, "send", send)

    async def run() -> None:
        async with AsyncLLM(config_for(2, relay=name), ForkFactory(before)) as llm:
            async for _ in llm.generate([1], SamplingParams(3)):
                pass
            await asyncio.sleep(0.2)
            async for _ in llm.generate([1], SamplingParams(2)):
                pass

    asyncio.run(run())
    said = [line for line in log.read_text().splitlines() if not line.startswith("HELLO")]
    assert said[0].startswith(("DONE", "GO 0"))
    assert said[1:] == [*(f"STEP {n}" for n in range(1, 6)), "STOP 6"]
