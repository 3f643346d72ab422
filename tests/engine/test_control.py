"""What the other ranks say to rank 0: who they are when they join, and why they leave."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

import engine.rank
from engine.clock import Deadline
from engine.config import EngineConfig, Launch
from engine.control import Control, config_digest, engine_version
from engine.errors import Accused, EngineError, ExitCode, PeerFailed, RelayError
from engine.relay import frames
from engine.relay.frames import Fail, FrameKind, Join
from tests.engine import wires
from tests.engine.forks import ForkFactory
from tests.engine.seats import DIGEST, EPOCH, Place, place


def heard(here: Place, inbox: Control) -> None:
    """Rank 0 waits for something else, as it does while idle, and listens to `control` beside it."""
    other = here.context.socket(zmq.PULL)
    lifeline = here.lifeline()
    lifeline.attach(inbox)
    lifeline.wait([other], Deadline.after(3.0))


def listened(inbox: Control) -> None:
    """Rank 0 takes in the next record."""
    if inbox.socket.poll(3000):
        inbox.listen()


@pytest.mark.parametrize("culprit", ["dp0.rank1", "dp0.rank2", ""])
def test_a_fail_reaches_an_idle_rank_0_though_no_launcher_helps(culprit: str, tmp_path: Path) -> None:
    with place(tmp_path, 3) as here:
        inbox, sender = here.control(0), here.control(1)
        sender.join()
        sender.fail(Fail(1, culprit, "it went wrong"))
        with pytest.raises(PeerFailed, match="it went wrong") as caught:
            heard(here, inbox)
        assert caught.value.culprit == culprit
        assert inbox.missing() == [2]


def test_rank_0_leaves_as_the_cause_when_it_is_the_one_accused(tmp_path: Path) -> None:
    with place(tmp_path, 2) as here:
        inbox, sender = here.control(0), here.control(1)
        sender.fail(Fail(1, "dp0.rank0", "no frame STEP 4 came"))
        with pytest.raises(Accused, match="accused by rank 1: no frame STEP 4 came"):
            heard(here, inbox)


def test_a_fail_still_goes_out_when_its_sender_closes_at_once(tmp_path: Path) -> None:
    with place(tmp_path, 2) as here:
        inbox, sender = here.control(0), here.control(1)
        sender.fail(Fail(1, "dp0.rank1", "it went wrong"))
        sender.close()
        with pytest.raises(PeerFailed, match="it went wrong"):
            heard(here, inbox)


def test_nobody_blocks_when_rank_0_is_not_there(tmp_path: Path) -> None:
    with place(tmp_path, 2) as here:
        sender = here.control(1)
        done = threading.Event()

        def speak() -> None:
            for _ in range(100):
                sender.fail(Fail(1, "", "said in vain"))
            sender.close()
            done.set()

        threading.Thread(target=speak, daemon=True).start()
        assert done.wait(3)


JOIN = Join(1, 77, engine_version(), DIGEST)


def record(kind: FrameKind, number: int, what: Join | Fail, epoch: int = EPOCH) -> bytes:
    return frames.encode(kind, epoch, number, what)


@pytest.mark.parametrize(
    ("sent", "error", "text"),
    [
        ([record(FrameKind.JOIN, 1, JOIN, 5)], RelayError, "record JOIN 1 of rank 1 is of foreign epoch 0x5, expected"),
        ([record(FrameKind.JOIN, 1, Join(3, 7, "", DIGEST))], RelayError, "of rank 3, expected a rank from 1 to 2"),
        ([record(FrameKind.JOIN, 1, Join(0, 7, "", DIGEST))], RelayError, "of rank 0, expected a rank from 1 to 2"),
        ([record(FrameKind.JOIN, 2, JOIN)], RelayError, "JOIN 2 of rank 1, expected its record 1"),
        ([record(FrameKind.FAIL, 2, Fail(1, "", ""))], RelayError, "FAIL 2 of rank 1, expected its record 1"),
        ([record(FrameKind.JOIN, 1, JOIN)] * 2, PeerFailed, "dp0.rank1 joined twice, as process 77 and as process 77"),
        (
            [record(FrameKind.JOIN, 1, Join(1, 7, engine_version(), "f" * 16))],
            PeerFailed,
            f"dp0.rank1 joined with configuration digest {'f' * 16} .*, dp0.rank0 has {DIGEST}",
        ),
        (
            [record(FrameKind.JOIN, 1, Join(1, 7, "0.0.0", DIGEST))],
            PeerFailed,
            r"dp0.rank1 joined with configuration digest \w+ \(engine 0.0.0\), dp0.rank0 has",
        ),
        ([record(FrameKind.JOIN, 1, JOIN)[:-1]], RelayError, "control: relay frame"),
        ([record(FrameKind.STEP, 1, Fail(1, "", ""))], RelayError, "STEP 1 of rank 1, expected JOIN, FAIL or RESULT"),
        ([b"GET / HTTP/1.1 and so on, more than a header"], RelayError, "begins with 0x47"),
    ],
)
def test_a_record_that_is_not_as_it_has_to_be_fails_the_start(
    sent: list[bytes], error: type[EngineError], text: str, tmp_path: Path
) -> None:
    with place(tmp_path, 3) as here:
        inbox = here.control(0)
        stranger = here.context.socket(zmq.PUSH)
        stranger.connect(here.address("control"))
        for raw in sent[:-1]:
            stranger.send(raw)
            listened(inbox)
        stranger.send(sent[-1])
        with pytest.raises(error, match=text) as caught:
            listened(inbox)
        if isinstance(caught.value, PeerFailed):
            assert caught.value.culprit == "dp0.rank1"


@pytest.mark.parametrize("number", [1, 2])
def test_a_fail_is_heard_whether_or_not_the_record_before_it_went(number: int, tmp_path: Path) -> None:
    """Who fails in the sending of a record cannot know whether it went."""
    with place(tmp_path, 3) as here:
        inbox = here.control(0)
        sender = here.context.socket(zmq.PUSH)
        sender.connect(here.address("control"))
        sender.send(record(FrameKind.JOIN, 1, JOIN))
        listened(inbox)
        sender.send(record(FrameKind.FAIL, number, Fail(1, "dp0.rank1", "a disk is full")))
        with pytest.raises(PeerFailed, match="a disk is full") as caught:
            listened(inbox)
        assert caught.value.culprit == "dp0.rank1"


def test_the_digest_tells_any_two_configurations_apart() -> None:
    def launch(**changes: object) -> Launch:
        return Launch(EngineConfig(tp_size=2, **changes), 7, "/tmp/x", True, 1.5)  # type: ignore[arg-type]

    assert config_digest(launch()) == config_digest(launch())
    assert re.fullmatch("[0-9a-f]{16}", config_digest(launch()))
    assert config_digest(launch()) != config_digest(launch(max_num_seqs=17))


def other_digest(victim: str) -> Callable[[str], None]:
    return wires.instead(victim, engine.rank, "config_digest", lambda launch: "0" * 16)


@pytest.mark.parametrize("name", wires.SAFE)
def test_a_rank_with_another_configuration_fails_the_start_everywhere(name: str, tmp_path: Path) -> None:
    causes = wires.Causes(tmp_path)
    factory = ForkFactory(wires.all_of(causes.before, other_digest("dp0.rank2")))
    error = wires.start_fails(factory, 3, relay=name)
    assert error.role == "dp0.rank2"
    for rank in range(3):
        cause = causes.of(f"dp0.rank{rank}").cause
        assert re.search(
            rf"dp0.rank2 joined with configuration digest {'0' * 16} .* dp0.rank0 has [0-9a-f]{{16}}", cause
        )
    assert sorted(code or 0 for code in factory.exits())[-1] in (ExitCode.OWN_FAILURE, ExitCode.PEER_FAILED)


def test_a_join_says_who_comes(tmp_path: Path) -> None:
    with place(tmp_path, 2) as here:
        inbox = here.context.socket(zmq.PULL)
        inbox.bind(here.address("control"))
        here.control(1).join()
        frame = frames.decode(inbox.recv())
        said = frames.payload(frame, Join)
        assert (str(frame), frame.epoch) == ("JOIN 1", EPOCH)
        assert said == Join(1, os.getpid(), engine_version(), DIGEST)
