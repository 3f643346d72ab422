"""HELLO, INIT, READY: rank 0's part in them, whatever the launcher answers."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import msgspec
import pytest

from engine import relay
from engine.codec import packed, sealed
from engine.config import Timeouts
from engine.control import config_digest, engine_version
from engine.errors import ExitCode
from engine.messages import CLIENT_ROLE, EngineReady, Hello, Init, Welcome
from engine.startup import StartupLink
from tests.engine import wires
from tests.engine.bare import EPOCH, Bare, bare
from tests.engine.forks import ForkFactory, replace
from tests.engine.peers import PATIENCE

HASTY = Timeouts(startup=5.0, handshake=0.5, step=1.0, stall=0.5, shutdown=2.0)


@pytest.mark.parametrize("size", [1, 2])
def test_hello_comes_before_anything_else_and_says_who_is_there(
    size: int, tmp_path: Path, factory: ForkFactory
) -> None:
    with bare(tmp_path, factory, size) as engine:
        engine.start()
        hello = engine.heard()
        assert hello == Hello(EPOCH, 0, engine.first.process.pid, engine_version(), config_digest(engine.launch))
        engine.until(lambda: engine.first.phase == "hello")
        # Until it is answered it goes no further, so there is no relay either.
        assert not {"relay", "relay.1", "control"} & set(os.listdir(tmp_path))


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("clients", [1, 3])
def test_every_client_is_welcomed_and_ready_is_said_on_startup_and_in_the_report(
    size: int, clients: int, tmp_path: Path, factory: ForkFactory
) -> None:
    with bare(tmp_path, factory, size, clients, page_size=8, num_pages=100) as engine:
        engine.start()
        engine.heard()
        engine.answer()
        assert engine.heard() == EngineReady(EPOCH, 0)
        for peer in engine.peers:
            assert peer.welcomed() == Welcome(EPOCH, 0, peer.index, 512, 100, 8)
        engine.until(lambda: all(rank.ready is not None for rank in engine.ranks.all))
        assert engine.first.phase == "connect"
        engine.stop()
        assert engine.ended() == [ExitCode.STOPPED] * size


@pytest.mark.parametrize("name", wires.SAFE)
def test_ready_never_comes_before_the_last_rank_has_joined(name: str, tmp_path: Path) -> None:
    mark = tmp_path / "joins"

    def act() -> None:
        time.sleep(0.3)
        mark.touch()

    factory = ForkFactory(wires.ahead("dp0.rank2", relay.strategy(name), "join", act))
    with bare(tmp_path, factory, 3, relay=name) as engine:
        engine.start()
        engine.heard()
        engine.answer()
        assert isinstance(engine.heard(), EngineReady)
        assert mark.exists()


def failure(engine: Bare) -> tuple[int, str, str]:
    """Rank 0's exit code, and whom and what it blames."""
    engine.until(lambda: engine.first.ended and engine.first.silent)
    report = engine.first.failed
    assert report is not None
    assert report.code == engine.first.exitcode
    return report.code, report.culprit, report.cause


def test_a_hello_that_nobody_answers_ends_at_the_handshakes_limit(tmp_path: Path, factory: ForkFactory) -> None:
    with bare(tmp_path, factory, timeouts=HASTY) as engine:
        engine.start()
        engine.heard()
        code, culprit, cause = failure(engine)
        assert (code, culprit) == (ExitCode.DEADLINE, CLIENT_ROLE)
        waited = re.fullmatch(r"hello: no INIT came in (\d+\.\d\d) s", cause)
        assert waited is not None
        assert 0.5 <= float(waited[1]) < 3.0  # the start-up deadline is at 5
        assert engine.first.phase == "hello"


def test_a_hello_that_nobody_answers_ends_at_the_startup_deadline(tmp_path: Path, factory: ForkFactory) -> None:
    with bare(tmp_path, factory, timeouts=msgspec.structs.replace(HASTY, startup=1.0, handshake=60.0)) as engine:
        engine.start()
        assert failure(engine)[0] == ExitCode.DEADLINE


def encoded(record: Init | EngineReady | list[int]) -> bytes:
    return packed(record)


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([sealed(b"\xc1")], "startup: an answer that cannot be read, expected INIT"),
        ([encoded([2, EPOCH])], "startup: an answer that cannot be read, expected INIT"),
        ([encoded(Init(EPOCH ^ 1, ["a"], ["b"]))], "startup: INIT of foreign epoch 0x123456789abcdef1, expected"),
        ([encoded(Init(EPOCH, ["a"], []))], "startup: INIT names 1 inputs and 0 outputs, expected 1 (client_count)"),
        ([encoded(Init(EPOCH, ["a", "b"], ["c", "d"]))], "INIT names 2 inputs and 2 outputs, expected 1"),
        ([encoded(EngineReady(EPOCH, 0))], "startup: EngineReady came, expected INIT"),
        ([encoded(Init(EPOCH, ["a"], ["b"])), b""], "startup: an answer of 2 frames, expected one INIT"),
    ],
)
def test_an_answer_that_is_not_the_init_of_this_run_fails_the_start(
    frames: list[bytes], text: str, tmp_path: Path, factory: ForkFactory
) -> None:
    with bare(tmp_path, factory) as engine:
        engine.start()
        engine.heard()
        engine.answer(*frames)
        code, culprit, cause = failure(engine)
        assert (code, culprit) == (ExitCode.OWN_FAILURE, "dp0.rank0")
        assert cause.startswith("HandshakeError: ")
        assert text in cause


def test_a_second_init_fails_the_start(tmp_path: Path) -> None:
    def before(role: str) -> None:
        whole = StartupLink.ready

        def ready(self: StartupLink) -> None:
            self._socket.poll(PATIENCE)
            whole(self)

        replace(StartupLink, "ready", ready)

    with bare(tmp_path, ForkFactory(before)) as engine:
        engine.start()
        engine.heard()
        engine.answer()
        engine.answer()
        code, _, cause = failure(engine)
        assert code == ExitCode.OWN_FAILURE
        assert "a second message came after INIT" in cause


def test_a_rank_that_waits_for_init_leaves_when_it_is_told_so_or_its_launcher_is_gone(
    tmp_path: Path, factory: ForkFactory
) -> None:
    with bare(tmp_path, factory) as engine:
        engine.start()
        engine.heard()
        engine.fail("no more")
        assert failure(engine) == (ExitCode.PEER_FAILED, CLIENT_ROLE, "no more")
