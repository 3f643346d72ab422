"""CAUSE: an error tells the root cause, not one of its consequences."""

from __future__ import annotations

import pytest

from harness.faults import Drop, Exit, Fault, Foreign, Kill, Lag, Skip, Squat, Stop
from harness.instant import Instant
from tests.harness.synthetic import DEAD, KILL_RANK_0, failed, mark, process, sentences

WAITED = "EngineDeadError|dp0.rank0|dp0.rank1 waited for it"
LEFT = [process("client"), process("dp0.rank0", -9), process("dp0.rank1", 11)]


def test_an_error_that_names_another_role_than_the_dead_one_is_found() -> None:
    assert sentences("CAUSE", failed(), faults=[KILL_RANK_0], fired=[1], processes=LEFT) == []
    wrong = failed("EngineDeadError|dp0.rank1|left because of a peer")
    found = sentences("CAUSE", wrong, faults=[KILL_RANK_0], fired=[1], processes=LEFT)
    assert found == ["request r0 ended with an error that names dp0.rank1, not dp0.rank0"]


def test_after_a_loss_a_role_on_its_path_is_named() -> None:
    drop = Drop(link="relay", frame="step", victim="dp0.rank1")
    assert sentences("CAUSE", failed(WAITED), faults=[drop], fired=[1]) == []
    stranger = failed("EngineDeadError|client|cancelled")
    assert "names client" in sentences("CAUSE", stranger, faults=[drop], fired=[1])[0]


@pytest.mark.parametrize(
    ("other", "role", "found"),
    [
        (Drop(link="relay", frame="step", victim="dp0.rank1"), "dp0.rank1", False),
        (Drop(link="relay", frame="step", victim="dp0.rank1"), "dp0.rank2", True),
        (Lag(link="relay", frame="step", victim="dp0.rank1", seconds=0.1), "dp0.rank1", True),
        (Foreign(link="output", frame="outputs", victim="dp0.rank0"), "dp0.rank1", True),
        (Skip(Instant.parse("dp0.rank1:tp.all_reduce#2:before")), "dp0.rank2", False),
    ],
)
def test_beside_a_death_whatever_else_can_end_an_engine_may_be_named(other: Fault, role: str, found: bool) -> None:
    told = failed(f"EngineDeadError|{role}|something")
    for wrong, fired in ((found, 1), (True, 0)):
        assert bool(sentences("CAUSE", told, faults=[KILL_RANK_0, other], fired=[1, fired], tp=3)) == wrong


def test_of_a_stopped_rank_that_one_is_named_and_of_several_any() -> None:
    stop = Stop(Instant.parse("dp0.rank1:relay.recv[step]#1:after"))
    assert "names dp0.rank0, not dp0.rank1" in sentences("CAUSE", failed(WAITED), faults=[stop], fired=[1])[0]
    both = Stop(stop.at, also=("dp0.rank0",))
    assert sentences("CAUSE", failed(WAITED), faults=[both], fired=[1]) == []


def test_any_rank_may_find_the_squatter() -> None:
    squat = Squat(Instant.parse("dp0.rank0:relay.bind#1:after"))
    for role in ("dp0.rank0", "dp0.rank1"):
        assert sentences("CAUSE", failed(f"EngineDeadError|{role}|no hello"), faults=[squat], fired=[1]) == []


@pytest.mark.parametrize(("earlier", "found"), [(100, False), (5000, True)])
def test_of_two_deaths_far_apart_the_first_is_named(earlier: int, found: bool) -> None:
    kills = [Kill(Instant.parse("dp0.rank1:relay.recv[step]#1:after")), KILL_RANK_0]
    died = [process("dp0.rank0", -9, ended=9000), process("dp0.rank1", -9, ended=9000 - earlier)]
    told = sentences("CAUSE", failed(t=9100), faults=kills, fired=[1, 1], processes=[process("client"), *died])
    assert bool(told) == found


@pytest.mark.parametrize(
    ("cause", "status", "true"),
    [
        ("killed by SIGKILL", -9, True),
        ("killed by SIGTERM", -9, False),
        ("killed by SIGKILL", 3, False),
        ("left unasked with exit code 3", 3, True),
        ("left unasked with exit code 0", 3, False),
        ("InjectedError: on purpose", 10, True),
    ],
)
def test_what_is_said_of_an_exit_is_true(cause: str, status: int, true: bool) -> None:
    left = Exit(KILL_RANK_0.at, 3)
    processes = [process("client"), process("dp0.rank0", status), process("dp0.rank1", 11)]
    told = failed(f"EngineDeadError|dp0.rank0|{cause}")
    assert (sentences("CAUSE", told, faults=[left], fired=[1], processes=processes) == []) == true


def test_all_users_are_told_the_same() -> None:
    second = [mark(11, "request.sent", number=1)]
    same = mark(91, "request.failed", "EngineDeadError", 1, ok=False, text=DEAD)
    assert sentences("CAUSE", [*failed(), *second, same], faults=[KILL_RANK_0], fired=[1], processes=LEFT) == []
    other = mark(91, "request.failed", "EngineDeadError", 1, ok=False, text="EngineDeadError|dp0.rank0|it is late")
    (found,) = sentences("CAUSE", [*failed(), *second, other], faults=[KILL_RANK_0], fired=[1], processes=LEFT)
    assert found.startswith("request r1 was told of dp0.rank0: it is late")
