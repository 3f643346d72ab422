"""A given directory never loses a file of its owner's, and a start that fails keeps nothing."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zmq

from engine import descriptors, endpoints
from engine.claim import LOCK, MARK, PREFIX, Claim
from engine.client import ownership
from engine.client.aio import AsyncMPClient
from engine.endpoints import STORE, Endpoints
from engine.errors import ConfigError, StartupError
from tests.engine.forks import ForkFactory, config_for
from tests.engine.residue import bind, leave_as_if_killed, listing

MAKERS: dict[str, Callable[[Path], Any]] = {
    "file": lambda path: path.write_bytes(b"precious"),
    "empty file": Path.touch,
    "directory": Path.mkdir,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "socket": bind,
    "pipe": os.mkfifo,
}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("name", ["input", "output", "control", "relay", "relay.1", STORE])
def test_a_file_of_a_needed_name_is_refused_by_name_and_nothing_is_touched(
    name: str, kind: str, tmp_path: Path
) -> None:
    MAKERS[kind](tmp_path / name)
    before = listing(tmp_path)
    for _ in range(2):
        with pytest.raises(
            ConfigError, match=rf"^socket_dir: .* may use the name '{name}'; move {tmp_path}/{name} away"
        ):
            Endpoints.create(str(tmp_path), 2)
        assert listing(tmp_path) == before


@pytest.mark.parametrize("kind", MAKERS)
def test_a_lock_file_that_no_engine_made_is_refused_at_once_and_not_touched(kind: str, tmp_path: Path) -> None:
    MAKERS[kind](tmp_path / LOCK)
    before = listing(tmp_path)
    began = time.monotonic()
    with pytest.raises(ConfigError, match=rf"^socket_dir: .*{tmp_path}/{LOCK}"):
        Endpoints.create(str(tmp_path))
    assert time.monotonic() - began < 1.0
    assert listing(tmp_path) == before


def test_what_a_killed_engine_left_goes_away_and_nothing_else(tmp_path: Path) -> None:
    leave_as_if_killed(tmp_path, "input", "output", "relay", "relay.7", "control")
    for name in ("notes", "relay.9", "relay.x", "store", "lock"):
        (tmp_path / name).write_bytes(b"precious")
    made = Endpoints.create(str(tmp_path), 2)
    assert sorted(os.listdir(tmp_path)) == [LOCK, "lock", "notes", "relay.9", "relay.x", "store"]
    made.remove()
    assert sorted(os.listdir(tmp_path)) == ["lock", "notes", "relay.9", "relay.x", "store"]


@pytest.mark.parametrize(("name", "kind"), [("input", "file"), (STORE, "directory"), ("relay.1", "dangling link")])
def test_beside_what_a_killed_engine_left_a_file_that_it_cannot_have_made_is_refused(
    name: str, kind: str, tmp_path: Path
) -> None:
    leave_as_if_killed(tmp_path, "output", "control")
    (tmp_path / STORE).unlink()
    MAKERS[kind](tmp_path / name)
    before = listing(tmp_path)
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"'{name}'"):
            Endpoints.create(str(tmp_path), 2)
        after = listing(tmp_path)
        # The lock file of the killed engine stays, and with it the leave to remove the rest later.
        assert after.pop(LOCK)[:2] == before[LOCK][:2]
        assert after == {name: file for name, file in before.items() if name != LOCK}


def test_an_engine_killed_before_it_had_looked_around_leaves_no_leave_to_remove_anything(tmp_path: Path) -> None:
    Claim.of(str(tmp_path)).release()
    bind(tmp_path / "input")
    with pytest.raises(ConfigError, match="'input'"):
        Endpoints.create(str(tmp_path))
    assert os.listdir(tmp_path) == ["input"]


def test_at_the_end_only_what_the_engine_has_made_goes(tmp_path: Path, factory: ForkFactory) -> None:
    (tmp_path / "mine").write_bytes(b"precious")
    client = AsyncMPClient(config_for(1, socket_dir=str(tmp_path)), factory)
    assert (tmp_path / LOCK).read_bytes().startswith(MARK + b"\npid %d\n" % os.getpid())
    (tmp_path / "control").write_bytes(b"precious")  # an engine of one rank does not bind it
    bind(tmp_path / "relay.1")
    client.shutdown()
    assert sorted(os.listdir(tmp_path)) == ["control", "mine", "relay.1"]


def test_a_given_directory_that_is_called_like_a_private_one_is_not_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    given = tmp_path / f"{PREFIX}results"
    given.mkdir()
    leave_as_if_killed(given, "input")
    (given / "table").write_bytes(b"precious")
    Endpoints.create(None).remove()
    assert (given / "table").read_bytes() == b"precious"


def test_a_directory_that_is_a_file_or_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for bad in (str(tmp_path / "file"), "/proc/x", "/dev/null"):
        with pytest.raises(ConfigError, match=r"^socket_dir: .* expected a directory that can be used"):
            Endpoints.create(bad)


def _fail(*_: object, **__: object) -> Any:
    raise OSError(24, "Too many open files")


FAILURES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "the pulse table": lambda patch: patch.setattr(ownership, "PulseTable", _fail),
    "its memory": lambda patch: patch.setattr("mmap.mmap", _fail),
    "a socket": lambda patch: patch.setattr(zmq.Context, "socket", _fail),
    "the bind": lambda patch: patch.setattr(zmq.Socket, "bind", _fail),
    "the look around": lambda patch: patch.setattr(Endpoints, "_make_room", _fail),
    "the path check": lambda patch: patch.setattr(endpoints, "_check_paths", _fail),
    "the lock": lambda patch: patch.setattr("fcntl.flock", _fail),
    "the descriptors": lambda patch: patch.setattr(descriptors, "OWN", 1_000_000),
}


# A fresh directory is empty and is not looked at.
CASES = [
    (what, kind) for what in FAILURES for kind in ("private", "given") if (what, kind) != ("the look around", "private")
]


@pytest.mark.parametrize(("what", "kind"), CASES)
def test_a_start_that_fails_keeps_neither_descriptor_nor_directory(
    what: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factory: ForkFactory
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    given = tmp_path / "given"
    given.mkdir()
    config = config_for(1, socket_dir=None if kind == "private" else str(given))
    AsyncMPClient(config, factory).shutdown()  # what is opened once for all is open by now
    before = sorted(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        FAILURES[what](patch)
        with pytest.raises((OSError, ConfigError, StartupError)):
            AsyncMPClient(config, factory)
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert (os.listdir(tmp_path), os.listdir(given)) == (["given"], [])
    AsyncMPClient(config, factory).shutdown()


def test_too_few_descriptors_are_a_sentence_and_not_the_end_of_the_program(factory: ForkFactory) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = set(map(int, os.listdir("/proc/self/fd")))
    free = [number for number in range(4096) if number not in taken]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[8], hard))
    try:
        with pytest.raises(StartupError, match=r"needs 40 file descriptors, \d+ are left: raise ulimit -n"):
            AsyncMPClient(config_for(2), factory)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
