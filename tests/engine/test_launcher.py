"""The frontend's side: light to import, strict about its configuration, tidy about its directory."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy
import pytest

from engine.clock import Deadline
from engine.config import EngineConfig, Launch, Timeouts
from engine.death import judge
from engine.endpoints import Endpoints
from engine.errors import ConfigError, ExitCode
from engine.launch import Rank, Ranks
from engine.messages import FailedReport, ReadyReport


def test_the_launcher_side_never_imports_torch() -> None:
    modules = ["launch", "client.aio", "client.base", "config", "errors", "messages", "endpoints", "llm", "__main__"]
    code = f"import sys{''.join(f', engine.{module}' for module in modules)}; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("model", {"model": "huge"}),
        ("model", {"model": ["tiny"]}),
        ("model", {"model": None}),
        ("tp_size", {"tp_size": 5}),
        ("tp_size", {"tp_size": 0}),
        ("tp_size", {"tp_size": True}),
        ("tp_size", {"tp_size": 2.0}),
        ("tp_size", {"tp_size": 10**5000}),
        ("relay", {"relay": ["pushpull"]}),
        ("relay", {"relay": None}),
        ("timeouts", {"timeouts": None}),
        ("timeouts", {"timeouts": {"step": 1}}),
        ("relay", {"relay": "carrier-pigeon"}),
        ("timeouts.step", {"timeouts": Timeouts(step=None)}),
        ("max_num_seqs", {"max_num_seqs": 0}),
        ("relay_high_water", {"relay_high_water": -1}),
        ("relay_high_water", {"relay_high_water": 2**31}),
        ("num_pages", {"num_pages": 2**63}),
        ("page_size", {"page_size": "16"}),
        ("log_level", {"log_level": "LOUD"}),
        ("log_level", {"log_level": 10}),
        ("log_level", {"log_level": None}),
        ("socket_dir", {"socket_dir": ""}),
        ("socket_dir", {"socket_dir": 5}),
        ("socket_dir", {"socket_dir": b"/tmp/x"}),
        ("socket_dir", {"socket_dir": "/tmp/\0x"}),
        ("socket_dir", {"socket_dir": os.fsdecode(b"/tmp/\xff")}),
        ("socket_dir", {"socket_dir": Path(os.fsdecode(b"/tmp/\xff"))}),
    ],
)
def test_a_wrong_value_is_refused_by_field_value_and_expectation(field: str, changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig(**changes)  # type: ignore[arg-type]
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: got ")
    assert ", expected " in str(caught.value)
    assert len(str(caught.value).encode()) < 400


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), True, "5", 3e6, 10**400])
def test_a_deadline_is_a_positive_number_of_seconds_that_every_wait_can_count(value: object) -> None:
    with pytest.raises(ConfigError, match=r"timeouts\.handshake"):
        Timeouts(handshake=value)  # type: ignore[arg-type]


def test_only_the_unsynchronised_relay_has_no_step_deadline() -> None:
    assert EngineConfig(relay="unsynchronised", timeouts=Timeouts(step=None)).step_limit is None
    assert EngineConfig(relay="unsynchronised").step_limit is None
    assert EngineConfig(relay="handshake").step_limit == 60.0


def test_a_configuration_survives_json_and_msgpack() -> None:
    config = EngineConfig(tp_size=3, timeouts=Timeouts.profile("short"), socket_dir="/tmp/x")
    assert msgspec.json.decode(msgspec.json.encode(config), type=EngineConfig) == config
    launch = Launch(config, epoch=2**63 - 1, directory="/tmp/x", private=True, startup_at=1.5)
    assert Launch.decode(launch.encode()) == launch


def test_values_of_derived_types_become_plain_ones_that_can_be_sent() -> None:
    class Text(str):
        """What numpy and others have instead of str."""

    class Number(int):
        """The same for int."""

    timeouts = Timeouts(step=numpy.float64(2.0), stall=Number(3))
    made = EngineConfig(Text("tiny"), Number(2), Text("pushpull"), timeouts, Path("/tmp/x"))  # type: ignore[arg-type]
    plain = EngineConfig("tiny", 2, "pushpull", Timeouts(step=2.0, stall=3.0), "/tmp/x")
    assert made == plain
    assert Launch(made, 1, "", True, 1.0).encode() == Launch(plain, 1, "", True, 1.0).encode()


def test_the_fresh_directory_is_private_and_goes_away() -> None:
    endpoints = Endpoints.create(None)
    assert stat.S_IMODE(os.stat(endpoints.directory).st_mode) == 0o700
    assert endpoints.address("relay") == f"ipc://{endpoints.directory}/relay"
    endpoints.remove()
    assert not os.path.exists(endpoints.directory)
    endpoints.remove()


def test_a_socket_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"shorter path .* of 107"):
        Endpoints.create(str(tmp_path / ("x" * 100)))


class Gone:
    """A process that has ended."""

    role, pid = "gone", 0

    def fileno(self) -> int:
        return -1

    def exitcode(self) -> int | None:
        return None

    def send_signal(self, signum: int) -> None:
        """Nobody is there."""

    def close(self) -> None:
        """Nothing is held."""


def rank(number: int, code: int | None = None, *, blames: str = "", cause: str = "lost a peer") -> Rank:
    role = f"dp0.rank{number}"
    failed = None if code is None or code < 0 else FailedReport(code, blames, cause)
    return Rank(Gone(), -1, -1, role, exitcode=code, ended=code is not None, failed=failed)


@pytest.mark.parametrize(
    ("ranks", "culprit"),
    [
        ([rank(0, ExitCode.PEER_FAILED), rank(1, -9)], "dp0.rank1"),
        ([rank(0, ExitCode.PEER_FAILED, blames="dp0.rank2"), rank(1, ExitCode.OWN_FAILURE), rank(2)], "dp0.rank1"),
        ([rank(0, ExitCode.DEADLINE, blames="dp0.rank1"), rank(1)], "dp0.rank1"),
        ([rank(0, ExitCode.DEADLINE), rank(1, ExitCode.DEADLINE), rank(2)], "dp0.rank2"),
        ([rank(0, ExitCode.PEER_FAILED), rank(1, ExitCode.DEADLINE, blames="dp0.rank2"), rank(2)], "dp0.rank2"),
        ([rank(0), rank(1, 0)], "dp0.rank1"),
        ([rank(0, ExitCode.DEADLINE, blames="client"), rank(1)], "client"),
    ],
)
def test_one_death_is_told_from_those_that_follow_it(ranks: list[Rank], culprit: str) -> None:
    assert judge(ranks).culprit == culprit


def reported(number: int, *place: float, at: float) -> Rank:
    made = rank(number, ExitCode.DEADLINE)
    begun, since, inside = place
    made.ended, made.failed = (
        True,
        FailedReport(ExitCode.DEADLINE, "", "not finished", int(begun), since, bool(inside), at),
    )
    made.ready = ReadyReport(0, 0, 0.0)
    return made


@pytest.mark.parametrize(
    ("third", "culprit"),
    [
        (reported(2, 7, 5.0, False, at=11.0), "dp0.rank2"),  # has not come to it, and is in none before
        (reported(2, 8, 10.5, True, at=11.0), "dp0.rank2"),  # came to it when the deadline had passed
        (reported(2, 7, 9.0, True, at=11.0), ""),  # waits in the one before, for the same as the first
        (reported(2, 8, 9.0, True, at=11.0), ""),  # waited in it too
    ],
)
def test_of_ranks_that_name_nobody_the_one_that_came_late_is_blamed(third: Rank, culprit: str) -> None:
    assert judge([reported(0, 8, 9.0, True, at=10.0), reported(1, 8, 9.1, True, at=10.1), third]).culprit == culprit


def test_of_several_silent_ranks_the_stopped_one_is_blamed() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            ranks = [rank(0), rank(1, ExitCode.DEADLINE), rank(2), rank(3)]
            ranks[2].process.pid = process.pid
            assert judge(ranks).culprit != "dp0.rank2"
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            death = judge(ranks)
        finally:
            process.kill()
    assert death.culprit == "dp0.rank2"
    assert death.cause == "it is stopped by a signal, and dp0.rank1 waited for it: lost a peer"


def test_a_descriptor_that_stays_readable_does_not_keep_a_bounded_wait_from_ending() -> None:
    """A start that was given up, while the input socket had something to tell, once never came to its end."""
    ranks = Ranks()
    ranks.all.append(rank(0))
    wake = os.eventfd(1)
    ranks.watch(wake)
    try:
        assert not ranks.wait_for_end(Deadline.after(0.05))
    finally:
        os.close(wake)


def command(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "engine", *args], capture_output=True, text=True, timeout=60)


def test_the_command_line_generates_with_two_spawned_ranks() -> None:
    run = command("generate", "--model", "tiny", "--tp", "2", "--max-tokens", "16", "--json", "hello")
    assert run.returncode == 0
    assert run.stderr == ""
    said = json.loads(run.stdout)
    from engine.model.reference import greedy

    assert said["token_ids"] == greedy("tiny", list(b"hello"), 16)
    assert (said["prompt"], said["finish_reason"], said["tp"]) == ("hello", "length", 2)
    assert said["seconds"] > 0


@pytest.mark.parametrize(
    "args",
    [
        ["generate", "--tp", "5", "x"],
        ["generate", "--tp", "banana", "x"],
        ["generate", "--model", "huge", "x"],
        ["generate", "--relay", "pigeon", "x"],
        ["generate", "--max-tokens", "0", "x"],
        ["generate", ""],
        ["generate", "x" * 600],
        ["generate"],
        ["nosuch"],
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(args: list[str]) -> None:
    run = command(*args)
    assert run.returncode == 2
    assert run.stdout == ""
    assert len(run.stderr.splitlines()) == 1
    assert run.stderr.startswith("engine: ")
