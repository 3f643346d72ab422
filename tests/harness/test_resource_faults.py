"""Faults of resources: high-water marks, linger, addresses and files that others have, a long path, a full disk."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from harness.faults import (
    Block,
    Fault,
    FullDisk,
    HighWater,
    Kill,
    Linger,
    LongPath,
    Squat,
    Stale,
    Unlink,
)
from harness.history import History
from harness.instant import Instant
from harness.oracles import outcome
from harness.plan import PlanError, from_builtins
from harness.seam import disk, install, region, zmq_seam
from harness.seam.region import Recorder
from harness.seam.site import Outlets, deactivate
from harness.targets import get
from harness.targets.engine import ENGINE
from harness.world import folders
from harness.world.real import RealWorld
from tests.harness.test_faults import SAFE, fired, plan, run, told

SECOND = 1_000_000_000
START = Instant("client", "start")
ROLE = "dp0.rank0"


class Here:
    """The seam in this process, in the role of rank 0."""

    def __init__(self) -> None:
        self._memory = region.create()
        install.install(torch=False)

    def begin(self, *faults: Fault) -> None:
        outlets = Outlets(squat=zmq_seam.squat, adjust=zmq_seam.adjust)
        seam = install.begin(Recorder(self._memory, 0, ROLE), faults, outlets, ENGINE, {}, ENGINE.group_name)
        seam.life("start")

    def close(self) -> None:
        deactivate()
        for squatter in zmq_seam.sockets.squatters:
            squatter.close(linger=0)
        os.close(self._memory)


@pytest.fixture
def here() -> Iterator[Here]:
    made = Here()
    yield made
    made.close()


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(linger=0)


def queued(context: zmq.Context[zmq.Socket[bytes]], address: str) -> int:
    """How many messages a sender can send to a receiver that takes none."""
    sender, receiver = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    sender.bind(address)
    receiver.connect(address)
    sender.send(b"")  # there is a connection now, and one message is on its way
    count = 0
    with contextlib.suppress(zmq.Again):
        while count < 3000:
            sender.send(bytes(1 << 16), zmq.NOBLOCK)
            count += 1
    return count


# sockets


def test_sockets_with_a_low_high_water_mark_hold_few_messages(
    here: Here, context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    here.begin()
    healthy = queued(context, f"ipc://{tmp_path}/output")
    here.begin(HighWater(Instant(ROLE, "start"), link="output", messages=1))
    (tmp_path / "low").mkdir()
    low = queued(context, f"ipc://{tmp_path}/low/output")
    other = queued(context, f"ipc://{tmp_path}/input")
    assert low < healthy / 10
    assert other > low * 10


def test_a_high_water_mark_strikes_the_bind_at_hand(
    here: Here, context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    here.begin(HighWater(Instant(ROLE, "output.bind", side="before"), link="output", messages=7))
    made = context.socket(zmq.PUSH)
    made.setsockopt(zmq.SNDHWM, 500)
    made.bind(f"ipc://{tmp_path}/output")
    assert (made.getsockopt(zmq.SNDHWM), made.getsockopt(zmq.RCVHWM)) == (7, 7)


@pytest.mark.parametrize(("milliseconds", "waits"), [(0, False), (400, True)])
def test_a_socket_lingers_as_long_as_the_fault_says_and_not_as_it_is_told(
    here: Here, tmp_path: Path, milliseconds: int, waits: bool
) -> None:
    """The context's end waits for what is unsent to a peer that was never there."""
    here.begin(Linger(Instant(ROLE, "start"), link="output", milliseconds=milliseconds))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sender = context.socket(zmq.PUSH)
    sender.connect(f"ipc://{tmp_path}/output")
    sender.send(b"for nobody")
    began = time.monotonic()
    sender.close(linger=0 if waits else 5000)
    context.term()
    assert (time.monotonic() - began >= 0.4) is waits


def test_the_engine_leaves_in_time_although_its_sockets_linger_for_ever(world: RealWorld) -> None:
    """Rank 0 has outputs for a client that is dead; its context would never end."""
    killed = Kill(Instant(ROLE, "output.send", "outputs", 2), to="client")
    healthy, control = run(world, plan(killed))
    history, verdict = run(world, plan(Linger(Instant(ROLE, "start"), link="output"), killed))
    assert (control.ok, verdict.ok, fired(verdict)) == (True, True, [1, 1]), verdict
    assert leaving(history) > leaving(healthy) + 0.3, "the rank stood in the end of its context"
    assert all(process.ended_by == "itself" for process in history.processes)


def leaving(history: History) -> float:
    """Seconds that rank 0 took to leave after its client had died."""
    ends = {process.role: process.ended for process in history.processes}
    client, rank = ends["client"], ends[ROLE]
    assert client is not None
    assert rank is not None
    return (rank - client) / SECOND


def test_an_engine_whose_sockets_hold_one_message_serves(world: RealWorld) -> None:
    marks = [HighWater(Instant(role, "start"), link="relay") for role in (ROLE, "dp0.rank1")]
    _, verdict = run(world, plan(*marks))
    assert verdict.ok, verdict
    assert (verdict.served, fired(verdict)) == (1, [1, 1])


def test_a_subscriber_with_room_for_one_message_loses_a_subscription_and_is_named(world: RealWorld) -> None:
    """Relay `subscribed` makes two subscriptions; both are waiting when the connection is there."""
    mark = HighWater(Instant("dp0.rank1", "start"), link="relay")
    history, verdict = run(world, plan(mark, relay="subscribed"))
    assert verdict.ok, verdict
    assert (verdict.refused, fired(verdict)) == (1, [1])
    assert told(history).startswith("StartupError|dp0.rank1|accused by rank 0: join: no subscription came")


# addresses


BINDS = Instant(ROLE, "relay.bind", side="before")


@pytest.mark.parametrize("relay", SAFE)
def test_an_address_squatted_before_the_bind_is_taken_over_on_ipc(world: RealWorld, relay: str) -> None:
    _, verdict = run(world, plan(Squat(BINDS), relay=relay))
    assert verdict.ok, verdict
    assert (verdict.served, fired(verdict)) == (1, [1])


def test_on_tcp_who_binds_first_keeps_the_address(here: Here, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"

    class Tcp:
        """Names for a link that is on tcp."""

        link_of = staticmethod(lambda endpoint: "relay")
        classify = staticmethod(ENGINE.classify)

    here.begin(Squat(BINDS))
    zmq_seam.sockets.names = Tcp()
    mine = context.socket(zmq.PUSH)
    with pytest.raises(zmq.ZMQError, match="Address already in use"):
        mine.bind(address)
    here.begin(Squat(Instant(ROLE, "relay.bind")))
    zmq_seam.sockets.names = Tcp()
    mine.bind(address.rpartition(":")[0] + ":*")
    assert zmq_seam.squat("relay") is False


# files


@pytest.mark.parametrize("link", ["relay", "control", "output", "store"])
def test_what_a_killed_engine_has_left_is_no_obstacle_and_goes(world: RealWorld, link: str) -> None:
    history, verdict = run(world, plan(Stale(link=link)))
    assert verdict.ok, verdict
    assert (verdict.served, fired(verdict), history.residue) == (1, [1], ())


@pytest.mark.parametrize("link", ["relay", "output", "store"])
def test_a_strangers_file_is_refused_in_one_sentence_and_stays(world: RealWorld, link: str) -> None:
    history, verdict = run(world, plan(Stale(link=link, of="stranger")))
    assert verdict.ok, verdict
    assert (verdict.refused, fired(verdict), len(history.processes)) == (1, [1], 1)
    error = outcome.config_error(history)
    assert error is not None
    assert "move " in error.cause
    assert len(history.residue) == 1
    assert run(world, plan())[0].residue == ()


def test_a_strangers_socket_between_pick_and_bind_is_taken_over(world: RealWorld) -> None:
    _, verdict = run(world, plan(Stale(at=Instant(ROLE, "start"), link="relay", of="stranger")))
    assert verdict.ok, verdict
    assert (verdict.served, fired(verdict)) == (1, [1])


def test_a_store_that_an_earlier_life_has_spoilt_ends_the_start_with_an_error(world: RealWorld) -> None:
    """Torch reads the old file and waits in it with the interpreter locked: only the launcher's own limit ends that."""
    late = Block(Instant("dp0.rank1", "call(engine.rank:RankProcess.run)", side="before"), until=BOUND)
    history, verdict = run(world, plan(late, Stale(at=BOUND, link="store", of="stranger")))
    assert verdict.ok, verdict
    assert (verdict.refused, fired(verdict)) == (1, [1, 1])
    assert told(history).startswith("StartupError|dp0.rank")


BOUND = Instant(ROLE, "relay.bind")


@pytest.mark.parametrize(
    ("link", "at", "error"),
    [
        ("relay", BOUND, "StartupError|dp0.rank1|"),
        ("control", Instant(ROLE, "control.bind"), "StartupError|dp0.rank1|"),
        ("startup", Instant("client", "startup.bind"), "StartupError|client|"),
        ("relay", Instant(ROLE, "output.send", "outputs", 1), ""),
    ],
)
def test_a_file_that_is_removed_is_missed_only_by_who_comes_later(
    world: RealWorld, link: str, at: Instant, error: str
) -> None:
    history, verdict = run(world, plan(Unlink(at, link=link)))
    assert verdict.ok, verdict
    assert fired(verdict) == [1]
    assert (verdict.refused, verdict.served) == ((1, 0) if error else (0, 1))
    if error:
        assert told(history).startswith(error)


def test_a_store_that_is_removed_leaves_the_ranks_without_each_other(world: RealWorld) -> None:
    late = Block(Instant("dp0.rank1", "call(engine.rank:RankProcess.run)", side="before"), until=BOUND)
    gone = Unlink(Instant("dp0.rank1", "store.set", side="before"), link="store")
    history, verdict = run(world, plan(late, gone))
    assert verdict.ok, verdict
    assert (verdict.refused, fired(verdict)) == (1, [1, 1])
    assert told(history).startswith("StartupError|dp0.rank")


# a long path


@pytest.mark.parametrize(("size", "served"), [(90, 1), (120, 0), (400, 0)])
def test_a_path_that_no_socket_can_have_is_refused_in_one_sentence(world: RealWorld, size: int, served: int) -> None:
    history, verdict = run(world, plan(LongPath(size=size)))
    assert verdict.ok, verdict
    assert (verdict.served, fired(verdict), history.residue) == (served, [1], ())
    if not served:
        error = outcome.config_error(history)
        assert error is not None
        assert "expected a shorter path (a socket would need" in error.cause


def test_the_folder_has_the_length_that_is_asked_for(tmp_path: Path) -> None:
    for size in (len(os.fsencode(tmp_path)) + 2, 300, 1000):
        assert len(os.fsencode(LongPath(size=size).below(tmp_path))) in (size, size + 1)


# a full disk


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root makes file systems")


@needs_root
@pytest.mark.parametrize(
    ("at", "error"),
    [
        (START, "ConfigError"),
        (Instant("client", "input.bind", side="before"), "StartupError|client|cannot bind"),
        (BINDS, "StartupError|dp0.rank0|ZMQError: No space left on device"),
        (Instant(ROLE, "output.send", "outputs", 1), ""),
    ],
    ids=str,
)
def test_a_full_disk_is_the_error_of_who_meets_it(world: RealWorld, at: Instant, error: str) -> None:
    history, verdict = run(world, plan(FullDisk(at=at)))
    assert verdict.ok, verdict
    assert (fired(verdict), history.residue) == ([1], ())
    refused = outcome.config_error(history)
    if error == "ConfigError":
        assert refused is not None
        assert "No space left on device" in refused.cause
    elif error:
        assert told(history).startswith(error)
    assert (verdict.refused, verdict.served) == ((1, 0) if error else (0, 1))


@needs_root
def test_a_disk_too_full_for_the_store_is_the_ranks_own_error(world: RealWorld) -> None:
    late = Block(Instant("dp0.rank1", "call(engine.rank:RankProcess.run)", side="before"), until=BOUND)
    history, verdict = run(world, plan(late, FullDisk(at=BOUND)))
    assert verdict.ok, verdict
    assert "No space left on device" in told(history)
    assert 10 in {process.status for process in history.processes}


@needs_root
def test_a_full_disk_is_full_is_drained_and_is_gone_with_its_descriptor(tmp_path: Path) -> None:
    folder = tmp_path / "e"
    held = disk.small_disk(folder)
    assert disk.Disk(folder).fill()
    with pytest.raises(OSError, match="No space left"):
        (folder / "more").touch()
    with socket.socket(socket.AF_UNIX) as left, pytest.raises(OSError, match="No space left"):
        left.bind(str(folder / "more"))
    disk.drain(folder)
    (folder / "more").write_bytes(bytes(1000))
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
    os.close(held)
    assert not folder.exists()


def test_a_disk_that_is_nobodys_own_is_never_filled(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path).f_bavail
    assert disk.Disk(tmp_path).fill() is False
    assert list(tmp_path.iterdir()) == []
    assert free > 0


@needs_root
def test_who_may_make_no_file_system_is_told_so_in_one_sentence() -> None:
    pid = os.fork()
    if not pid:
        said = ""
        os.setresuid(65534, 65534, 65534)
        folder = Path(tempfile.mkdtemp())
        try:
            with folders.run_folder(folder, plan(FullDisk())):
                pass
        except PlanError as error:
            said = str(error)
        told = "full_disk needs a file system of its own, which only root may make" in said
        os._exit(0 if told and not folder.exists() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# what cannot be


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"kind": "high_water", "at": "dp0.rank0:start", "link": "relay", "messages": 0}, "at least 1"),
        ({"kind": "linger", "at": "dp0.rank0:start", "link": "relay", "milliseconds": -2}, "and is not -1"),
        ({"kind": "long_path", "size": 20}, "outside 80..3000 bytes"),
        ({"kind": "long_path", "at": "dp0.rank0:start"}, "the folder has its name from the start"),
        ({"kind": "stale", "at": "dp0.rank0:start"}, "write stranger, or leave out at"),
        ({"kind": "unlink", "at": "client:start", "link": "relay"}, "there is no file yet"),
        ({"kind": "full_disk", "at": "dp0.rank0:exit"}, "nothing is written there any more"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(fault: dict[str, object], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        from_builtins({"faults": [fault]})


@pytest.mark.parametrize(
    "fault",
    [
        Stale(link="rely"),
        Unlink(BOUND, link="rely"),
        HighWater(BINDS, link="store"),
        Linger(BINDS, link="rely"),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_a_link_that_the_engine_does_not_have_is_refused(fault: Fault) -> None:
    with pytest.raises(PlanError, match=r"faults\[0\]\.link: no link"):
        get("engine").check(plan(fault))


def test_a_long_path_and_a_proxy_do_not_go_together() -> None:
    with pytest.raises(PlanError, match="no room for the proxy's own sockets on relay"):
        get("engine").check(plan(LongPath(size=95), observe=("relay",)))
