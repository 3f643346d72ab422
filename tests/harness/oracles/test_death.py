"""DEATH: a death reaches everybody, once and for ever the same, and nothing else is called one."""

from __future__ import annotations

import msgspec
import pytest

from harness.faults import Delay, Duplicate, Fault, Kill, Lag, Raise, Stop, Terminate
from harness.instant import Instant
from harness.oracles import ORACLES
from harness.targets import get
from tests.harness.synthetic import KILL_RANK_0, STARTED, call, failed, history, mark, process, request, sentences

_CAUSES = [
    ("PageError: the 512 pages do not add up", 11, True),
    ("PageError: the 512 pages do not add up", 12, False),
    ("no frame came in 1.00 s", 11, False),
    ("all_reduce 3 of step 1: not finished by its deadline", 11, False),
]
SURVIVOR_LEFT = [process("client"), process("dp0.rank0", -9), process("dp0.rank1", 11)]


def test_a_typed_error_after_a_death_is_right_and_another_one_is_not() -> None:
    assert sentences("DEATH", failed(), faults=[KILL_RANK_0], fired=[1], processes=SURVIVOR_LEFT) == []
    wrong = failed("KeyError||'r0'", "KeyError")
    found = sentences("DEATH", wrong, faults=[KILL_RANK_0], fired=[1], processes=SURVIVOR_LEFT)
    assert found == ["request r0 ended with KeyError: 'r0'"]


def test_a_refusal_for_which_there_was_no_reason_is_found() -> None:
    mild = Delay(Instant.parse("dp0.rank1:start"), 0.1)
    for faults, fired in (([], []), ([mild], [1]), ([KILL_RANK_0], [0])):
        assert "although nothing fatal" in sentences("DEATH", failed(), faults=faults, fired=fired)[0]


@pytest.mark.parametrize(("seconds", "words"), [(0.3, "although nothing fatal"), (3.0, ""), (None, "")])
def test_a_short_stop_must_be_served_and_a_long_one_need_not(seconds: float | None, words: str) -> None:
    stop = Stop(Instant.parse("dp0.rank1:relay.recv[step]#1:after"), seconds)
    named = failed("EngineDeadError|dp0.rank1|dp0.rank0 waited for it")
    found = sentences("DEATH", named, faults=[stop], fired=[1])
    assert bool(found) == bool(words)
    assert words in "".join(found)


@pytest.mark.parametrize("fault", [Raise(KILL_RANK_0.at), Terminate(KILL_RANK_0.at)], ids=str)
def test_a_raise_or_a_signal_is_fatal_if_the_role_left_for_it(fault: Fault) -> None:
    left = [process("client"), process("dp0.rank0", 10), process("dp0.rank1", 11)]
    assert sentences("DEATH", failed(), faults=[fault], fired=[1], processes=left) == []
    stays = [process("client"), process("dp0.rank0", 10), process("dp0.rank1", 0)]
    assert "did not leave" in sentences("DEATH", failed(), faults=[fault], fired=[1], processes=stays)[0]
    ignored = [process("client"), process("dp0.rank0", 0), process("dp0.rank1", 0)]
    assert sentences("DEATH", faults=[fault], fired=[1], processes=ignored) == []


def test_an_error_that_is_not_latched_is_found() -> None:
    latched = mark(95, "latched", "EngineDeadError", text="engine is dead")
    assert sentences("DEATH", [*failed(), latched], faults=[KILL_RANK_0], fired=[1], processes=SURVIVOR_LEFT) == []
    events = [*failed(), mark(95, "latched", "no error", ok=False, text="a call succeeded")]
    found = sentences("DEATH", events, faults=[KILL_RANK_0], fired=[1], processes=SURVIVOR_LEFT)
    assert found == ["a call after the death ended differently: no error: a call succeeded"]


@pytest.mark.parametrize(("status", "ended_by"), [(0, "itself"), (10, "itself"), (-9, "cleanup")])
def test_a_survivor_that_did_not_leave_for_its_peer_is_found(status: int, ended_by: str) -> None:
    processes = [process("client"), process("dp0.rank0", -9), process("dp0.rank1", status, ended_by)]  # type: ignore[arg-type]
    found = sentences("DEATH", failed(), faults=[KILL_RANK_0], fired=[1], processes=processes)
    assert found
    assert found[0].startswith("dp0.rank1 did not leave for the death of dp0.rank0 by itself")


@pytest.mark.parametrize(("status", "later", "found"), [(0, 100, False), (0, 900, True), (10, 100, True)])
def test_a_survivor_may_leave_in_order_if_it_was_asked_to_before_the_death_was_noticed(
    status: int, later: int, found: bool
) -> None:
    at = mark(90, "fault.fired", number=0)
    events = [*STARTED, *request(10, (7, 8)), at, mark(90 + later, "shutdown", "begin")]
    processes = [process("client"), process("dp0.rank0", -9), process("dp0.rank1", status)]
    told = sentences("DEATH", events, faults=[KILL_RANK_0], fired=[1], processes=processes)
    assert bool(told) == found


@pytest.mark.parametrize(("seconds", "found"), [(None, False), (0.1, True)])
def test_a_survivor_may_leave_by_itself_if_what_comes_to_it_is_broken_as_well(
    seconds: float | None, found: bool
) -> None:
    path = {"link": "relay", "frame": "step", "victim": "dp0.rank1"}
    other = Duplicate(**path) if seconds is None else Lag(**path, seconds=seconds)  # type: ignore[arg-type]
    processes = [process("client"), process("dp0.rank0", -9), process("dp0.rank1", 10)]
    told = sentences("DEATH", failed(), faults=[KILL_RANK_0, other], fired=[1, 1], processes=processes)
    assert bool(told) == found
    assert sentences("DEATH", failed(), faults=[KILL_RANK_0, other], fired=[1, 0], processes=processes)
    third = [*processes[:2], process("dp0.rank1", 11), process("dp0.rank2", 10)]
    assert (
        "dp0.rank2 did not leave"
        in sentences("DEATH", failed(), faults=[KILL_RANK_0, other], fired=[1, 1], processes=third, tp=3)[0]
    )


@pytest.mark.parametrize(("later", "found"), [(-50, False), (300, False), (950, True)])
def test_a_survivor_may_leave_at_a_deadline_that_began_before_the_death(later: int, found: bool) -> None:
    died = process("dp0.rank0", -9, ended=2000)
    processes = [process("client"), died, process("dp0.rank1", 12, ended=2000 + later)]
    assert bool(sentences("DEATH", failed(), faults=[KILL_RANK_0], fired=[1], processes=processes)) == found


@pytest.mark.parametrize("begun", [False, True])
def test_a_survivor_that_was_ended_before_it_could_run_is_excused(begun: bool) -> None:
    processes = [process("client"), process("dp0.rank0", -9), process("dp0.rank1", -15)]
    events = [call(2, "dp0.rank1", "start"), *([call(3, "dp0.rank1", "relay.connect")] if begun else [])]
    found = sentences("DEATH", [*failed(), *events], faults=[KILL_RANK_0], fired=[1], processes=processes)
    assert bool(found) == begun


def test_a_stall_of_the_machine_is_held_against_nobody() -> None:
    refused = history(failed("EngineDeadError|dp0.rank0|no frame came in 1.00 s"))
    assert ORACLES["DEATH"](refused, get("engine"))
    assert ORACLES["DEATH"](msgspec.structs.replace(refused, stalled=7.4), get("engine")) == []
    assert ORACLES["DEATH"](msgspec.structs.replace(refused, stalled=0.3), get("engine"))


@pytest.mark.parametrize(("cause", "status", "found"), _CAUSES)
def test_a_stall_excuses_only_who_came_late(cause: str, status: int, found: bool) -> None:
    processes = [process("client"), process("dp0.rank0", 10), process("dp0.rank1", status)]
    told = failed(f"EngineDeadError|dp0.rank0|{cause}")
    assert bool(sentences("DEATH", told, processes=processes, stalled=5.0)) == found


def test_a_death_that_a_fault_of_another_role_does_not_explain_is_still_a_death() -> None:
    kill = Kill(Instant.parse("dp0.rank1:relay.recv[step]#1:after"))
    processes = [process("client"), process("dp0.rank0", 11), process("dp0.rank1", -9)]
    assert sentences("DEATH", failed(), faults=[kill], fired=[1], processes=processes) == []
