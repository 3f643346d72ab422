"""What every safe relay promises, whichever it is: the start, the frames, the deadlines."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from engine import relay
from engine.config import EngineConfig
from engine.control import Control
from engine.core import EngineCore
from engine.errors import ExitCode
from engine.model import reference
from engine.relay.frames import FrameKind
from engine.relay.subscribed import SubscribedRelay
from tests.engine import wires
from tests.engine.forks import SHORT, ForkFactory
from tests.engine.wires import SAFE, Causes, Change

HASTY = msgspec.structs.replace(SHORT, handshake=0.7)
"""Deadlines for tests that wait for the handshake's."""

OPENING = {"handshake": (FrameKind.HELLO, 1), "subscribed": (FrameKind.GO, 0), "pushpull": (FrameKind.GO, 0)}
"""The first frame that rank 0 sends."""


def kill_me() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_default_is_the_relay_that_loses_nothing() -> None:
    assert EngineConfig().relay == "pushpull"


@pytest.mark.parametrize("name", SAFE)
@pytest.mark.parametrize(
    ("size", "victim", "method"),
    [(2, 1, "connect"), (2, 0, "join"), (3, 2, "connect"), (3, 1, "join"), (4, 3, "connect"), (4, 0, "open")],
)
def test_the_first_request_is_served_however_late_a_rank_is(name: str, size: int, victim: int, method: str) -> None:
    factory = ForkFactory(wires.late(f"dp0.rank{victim}", name, method, 0.3))
    assert asyncio.run(wires.first_tokens(factory, size, relay=name)) == reference.greedy("tiny", [1, 2, 3], 4)


@pytest.mark.parametrize("name", SAFE)
def test_a_rank_that_never_joins_is_named_by_all(name: str, tmp_path: Path) -> None:
    causes = Causes(tmp_path)
    never = wires.instead("dp0.rank2", Control, "join", lambda self: None)
    error = wires.start_fails(ForkFactory(wires.all_of(causes.before, never)), 3, relay=name, timeouts=HASTY)
    assert error.role == "dp0.rank2"
    assert error.phase == "join"
    for rank in range(3):
        assert "no JOIN came from dp0.rank2 in" in causes.of(f"dp0.rank{rank}").cause


def test_a_rank_that_never_subscribes_is_named_by_its_number() -> None:
    def connect(self: SubscribedRelay) -> None:
        self._socket.connect(self._seat.address("relay"))

    factory = ForkFactory(wires.instead("dp0.rank1", SubscribedRelay, "connect", connect))
    error = wires.start_fails(factory, 3, relay="subscribed", timeouts=HASTY)
    assert error.role == "dp0.rank1"
    assert "no subscription came from dp0.rank1 in" in error.cause


@pytest.mark.parametrize("name", ["subscribed", "pushpull"])
def test_a_lost_go_is_a_gap_that_the_rank_finds(name: str) -> None:
    error = wires.start_fails(ForkFactory(wires.sending(FrameKind.GO, 0, wires.lost)), 2, relay=name, timeouts=HASTY)
    assert error.role == "dp0.rank1"
    assert "FAIL 1 leaves a gap after nothing, expected 0" in error.cause


def killed_at(step: str, name: str) -> Callable[[str], None]:
    moment, _, what = step.partition(" ")
    if what in ("open", "join"):
        return wires.ahead("dp0.rank0", relay.strategy(name), what, kill_me)

    def change(data: bytes) -> list[bytes]:
        if moment == "before":
            kill_me()
        return [data]

    kind, number = OPENING[name]
    if moment == "before":
        return wires.sending(kind, number, change)
    # After the frame: at the collective in which the ranks agree about it.
    return wires.all_of(
        wires.sending(kind, number, change),
        wires.ahead("dp0.rank0", relay.strategy(name), "_round" if name == "handshake" else "_meet", kill_me),
    )


@pytest.mark.parametrize("name", SAFE)
@pytest.mark.parametrize("step", ["before open", "before join", "before frame", "after frame"])
def test_rank_0_dead_at_any_step_of_the_start_is_named(name: str, step: str) -> None:
    factory = ForkFactory(killed_at(step, name))
    error = wires.start_fails(factory, 3, relay=name)
    assert (error.role, error.exit_code) == ("dp0.rank0", -signal.SIGKILL)
    assert factory.exits() == [-signal.SIGKILL, ExitCode.PEER_FAILED, ExitCode.PEER_FAILED]


@pytest.mark.parametrize("name", SAFE)
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (wires.lost, "relay frame FAIL 4 leaves a gap after STEP 2, expected 3; it says"),
        (wires.repeated, "relay frame STEP 3 repeats or goes back after STEP 3, expected 4"),
        (wires.foreign, "relay frame STEP 3 is of foreign epoch"),
        (wires.damaged, "relay frame 3/3 is damaged"),
    ],
)
def test_a_step_frame_that_is_not_the_next_one_is_told_by_all(
    name: str, change: Change, text: str, tmp_path: Path
) -> None:
    causes = Causes(tmp_path)
    # With a relay that publishes, what happens to a frame happens to it for both ranks.
    hook = wires.sending(FrameKind.STEP, 3, change, "relay" if name != "pushpull" else "relay.2")
    factory = ForkFactory(wires.all_of(causes.before, hook))
    began = time.monotonic()
    error = asyncio.run(wires.death(factory, 3, relay=name))
    assert time.monotonic() - began < 5
    assert text in error.cause
    assert error.culprit in ("dp0.rank1", "dp0.rank2")
    assert error.culprit == "dp0.rank2" or name != "pushpull"
    assert ExitCode.OWN_FAILURE in factory.exits()
    for rank in range(3):
        # Who waited for the others until the deadline has the step's number, who was told has the frame's.
        cause = causes.of(f"dp0.rank{rank}").cause
        assert text in cause or (change is wires.lost and "of step 3: not finished by its deadline" in cause)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_that_is_late_in_a_step_is_named_also_among_three(victim: int) -> None:
    role = f"dp0.rank{victim}"
    factory = ForkFactory(wires.ahead(role, EngineCore, "step", lambda: time.sleep(1.3), nth=3))
    error = asyncio.run(wires.death(factory, 3))
    assert error.culprit == role
