"""Ready means that every rank hears rank 0; a start that cannot get there fails on every rank, in time, with a name."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable

import pytest
import zmq

import engine.relay.handshake as handshake
from engine import relay
from engine.client.aio import AsyncMPClient
from engine.errors import EngineDeadError, ExitCode, StartupError
from engine.llm import AsyncLLM
from engine.messages import SamplingParams
from engine.model import reference
from engine.relay import frames
from engine.relay.frames import FrameKind
from tests.engine.forks import ForkFactory, config_for, replace

Before = Callable[[str], None]


def slow(victim: str, method: str, seconds: float) -> Before:
    """`victim` sleeps before it does `method` of its relay."""

    def before(role: str) -> None:
        if role == victim:
            whole = getattr(handshake.HandshakeRelay, method)

            def late(self: relay.Relay, *args: object) -> object:
                time.sleep(seconds)
                return whole(self, *args)

            replace(handshake.HandshakeRelay, method, late)

    return before


def at_frame(kind: FrameKind, number: int, act: Callable[[], bool]) -> Before:
    """Rank 0 calls `act` instead of publishing that frame, and publishes it if the answer is True."""

    def before(role: str) -> None:
        if role == "dp0.rank0":
            whole = handshake.HandshakeRelay._publish

            def publish(self: handshake.HandshakeRelay, what: FrameKind, nth: int, *rest: object) -> None:
                if (what, nth) != (kind, number) or act():
                    whole(self, what, nth, *rest)  # type: ignore[arg-type]

            replace(handshake.HandshakeRelay, "_publish", publish)

    return before


def drop() -> bool:
    return False


def die() -> bool:
    os.kill(os.getpid(), signal.SIGKILL)
    return True


async def first_tokens(client_factory: ForkFactory, size: int) -> list[int]:
    async with AsyncLLM(config_for(size), client_factory) as llm:
        return [token async for output in llm.generate([1, 2, 3], SamplingParams(4)) for token in output.token_ids]


@pytest.mark.parametrize(
    ("victim", "method"),
    [("dp0.rank1", "connect"), ("dp0.rank0", "open"), ("dp0.rank1", "join"), ("dp0.rank0", "join")],
)
@pytest.mark.parametrize("size", [2, 4])
def test_the_first_request_is_served_however_late_a_rank_joins(victim: str, method: str, size: int) -> None:
    factory = ForkFactory(slow(victim, method, 0.4))
    assert asyncio.run(first_tokens(factory, size)) == reference.greedy("tiny", [1, 2, 3], 4)


def test_hellos_lost_before_anybody_has_joined_do_no_harm() -> None:
    factory = ForkFactory(at_frame(FrameKind.HELLO, 1, drop))
    assert asyncio.run(first_tokens(factory, 2)) == reference.greedy("tiny", [1, 2, 3], 4)


def start_fails(factory: ForkFactory, size: int, **changes: object) -> StartupError:
    began = time.monotonic()
    with pytest.raises(StartupError) as caught:
        AsyncMPClient(config_for(size, **changes), factory)
    assert time.monotonic() - began < 5
    assert not factory.living()
    return caught.value


def test_a_rank_that_never_hears_a_hello_is_named_by_all() -> None:
    def before(role: str) -> None:
        if role == "dp0.rank2":
            replace(handshake.HandshakeRelay, "connect", lambda self: None)

    factory = ForkFactory(before)
    error = start_fails(factory, 3)
    assert error.role == "dp0.rank2"
    assert "no hello reached dp0.rank2" in error.cause
    assert error.phase == "join"
    assert factory.exits() == [ExitCode.DEADLINE] * 3


def test_a_lost_done_frame_ends_at_the_deadline() -> None:
    def swallow_done(role: str) -> None:
        if role == "dp0.rank0":
            whole = handshake.HandshakeRelay._publish

            def publish(self: handshake.HandshakeRelay, kind: FrameKind, *rest: object) -> None:
                if kind is not FrameKind.DONE:
                    whole(self, kind, *rest)  # type: ignore[arg-type]

            replace(handshake.HandshakeRelay, "_publish", publish)

    factory = ForkFactory(swallow_done)
    error = start_fails(factory, 2)
    assert "no DONE frame" in error.cause
    assert error.role == "dp0.rank0"


@pytest.mark.parametrize("kind", [FrameKind.HELLO, FrameKind.DONE])
def test_rank_0_killed_in_the_handshake_is_named_and_the_others_leave_by_themselves(kind: FrameKind) -> None:
    def before(role: str) -> None:
        if role == "dp0.rank0":
            whole = handshake.HandshakeRelay._publish

            def publish(self: handshake.HandshakeRelay, what: FrameKind, *rest: object) -> None:
                if what is kind:
                    die()
                whole(self, what, *rest)  # type: ignore[arg-type]

            replace(handshake.HandshakeRelay, "_publish", publish)

    factory = ForkFactory(before)
    error = start_fails(factory, 3)
    assert error.role == "dp0.rank0"
    assert error.exit_code == -signal.SIGKILL
    assert "SIGKILL" in error.cause
    assert factory.exits() == [-signal.SIGKILL, ExitCode.PEER_FAILED, ExitCode.PEER_FAILED]


def test_a_foreign_frame_in_the_handshake_fails_the_start_on_every_rank() -> None:
    def before(role: str) -> None:
        if role == "dp0.rank0":
            whole = handshake.HandshakeRelay._publish

            def publish(self: handshake.HandshakeRelay, kind: FrameKind, *rest: object) -> None:
                if kind is FrameKind.DONE:
                    self._socket.send(frames.encode(FrameKind.HELLO, 1, 1))
                whole(self, kind, *rest)  # type: ignore[arg-type]

            replace(handshake.HandshakeRelay, "_publish", publish)

    factory = ForkFactory(before)
    error = start_fails(factory, 2)
    assert "foreign epoch" in error.cause
    assert error.role == "dp0.rank1"
    assert error.exit_code == ExitCode.OWN_FAILURE


def test_a_lost_step_frame_is_an_error_that_names_a_step_and_not_a_wedge() -> None:
    factory = ForkFactory(at_frame(FrameKind.STEP, 2, drop))

    async def run() -> EngineDeadError:
        llm = AsyncLLM(config_for(2), factory)
        with pytest.raises(EngineDeadError) as caught:
            async for _ in llm.generate([1, 2, 3], SamplingParams(4)):
                pass
        await asyncio.to_thread(llm.shutdown)
        return caught.value

    began = time.monotonic()
    error = asyncio.run(run())
    assert time.monotonic() - began < 5
    assert "step 2" in error.cause


def test_one_rank_never_enters_the_relay() -> None:
    def before(role: str) -> None:
        def refuse(*_: object) -> None:
            raise AssertionError("the relay was entered")

        replace(handshake.HandshakeRelay, "__init__", refuse)
        replace(relay, "create", refuse)

    assert asyncio.run(first_tokens(ForkFactory(before), 1)) == reference.greedy("tiny", [1, 2, 3], 4)


def test_each_iteration_is_exactly_one_step_frame_and_an_idle_engine_sends_none(tmp_path: object) -> None:
    log = f"{tmp_path}/kinds"

    def before(role: str) -> None:
        if role == "dp0.rank0":
            whole = zmq.Socket.send

            def send(self: zmq.Socket[bytes], data: bytes, *rest: object, **options: object) -> object:
                if self.socket_type == zmq.PUB:
                    with open(log, "a") as file:
                        file.write(f"{frames.decode(data)}\n")
                return whole(self, data, *rest, **options)  # type: ignore[call-overload]

            replace(zmq.Socket, "send", send)

    async def run() -> None:
        async with AsyncLLM(config_for(2), ForkFactory(before)) as llm:
            async for _ in llm.generate([1], SamplingParams(3)):
                pass
            await asyncio.sleep(0.2)
            async for _ in llm.generate([1], SamplingParams(2)):
                pass

    asyncio.run(run())
    with open(log) as file:
        said = [line for line in file.read().splitlines() if not line.startswith("HELLO")]
    assert said[0].startswith("DONE")
    assert said[1:] == [*(f"STEP {n}" for n in range(1, 6)), "STOP 6"]
