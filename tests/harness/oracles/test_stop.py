"""STOP: an orderly shutdown of a live engine ends in its bound, and all leave because they were asked."""

from __future__ import annotations

import pytest

from harness.faults import Delay, Duplicate, Fault, Kill, Skip, Stop, Terminate
from harness.history import Event, Process
from harness.instant import Instant
from tests.harness.synthetic import STARTED, failed, mark, process, request, sentences


def stopped(until: int = 150) -> list[Event]:
    shutdown = [mark(100, "shutdown", "begin"), mark(until, "shutdown", "done")]
    return [*STARTED, *request(10, (7, 8)), *shutdown]


def left(status: int) -> list[Process]:
    return [process("client"), process("dp0.rank0"), process("dp0.rank1", status)]


@pytest.mark.parametrize(("until", "found"), [(6_000, False), (6_200, True)])
def test_a_shutdown_that_takes_longer_than_the_engine_says_is_found(until: int, found: bool) -> None:
    assert bool(sentences("STOP", stopped(until), cleanup=until + 100)) == found
    assert sentences("STOP", stopped(until), cleanup=until + 100, stalled=1.0) == []


def test_a_shutdown_that_does_not_end_is_found() -> None:
    begun = stopped()[:-1]
    assert sentences("STOP", begun, cleanup=20_000, ended="budget")
    assert sentences("STOP", begun, cleanup=2_000, ended="budget") == []


@pytest.mark.parametrize(("status", "how"), [(-9, "killed by signal 9"), (10, "own failure"), (0, "")])
def test_a_rank_that_needs_a_signal_or_fails_is_found(status: int, how: str) -> None:
    found = sentences("STOP", stopped(), processes=left(status))
    assert bool(found) == bool(how)
    assert how in "".join(found)


@pytest.mark.parametrize(
    ("fault", "excused"),
    [
        (Duplicate(link="relay", frame="step", victim="dp0.rank1"), True),
        (Duplicate(link="output", frame="outputs", victim="dp0.rank0"), False),
        (Skip(Instant.parse("dp0.rank0:tp.all_reduce#2:before")), True),
        (Delay(Instant.parse("dp0.rank1:tp.all_reduce#2:before"), 0.1), False),
    ],
)
def test_what_was_wrong_before_the_shutdown_may_be_found_out_in_it(fault: Fault, excused: bool) -> None:
    assert (sentences("STOP", stopped(), processes=left(10), faults=[fault], fired=[1]) == []) == excused
    assert sentences("STOP", stopped(), processes=left(10), faults=[fault], fired=[0])


def test_a_signal_of_the_tear_down_ends_nobody() -> None:
    at = Instant.parse("dp0.rank1:relay.close#1:before")
    found = sentences("STOP", stopped(), faults=[Terminate(at)], fired=[1], processes=left(-15))
    assert found == ["dp0.rank1 did not leave in order when the engine was stopped: killed by signal 15"]
    assert sentences("STOP", stopped(), faults=[Terminate(at)], fired=[1]) == []
    hangup = Terminate(at, signal="HUP")
    assert sentences("STOP", stopped(), faults=[hangup], fired=[1], processes=left(-1)) == []


def test_faults_of_the_tear_down_may_take_what_they_take() -> None:
    at = Instant.parse("dp0.rank1:relay.close#1:before")
    struck = mark(101, "fault.fired", number=0)
    for fault in (Kill(at), Stop(at), Delay(at, 3.0)):
        assert sentences("STOP", [*stopped(), struck], faults=[fault], fired=[1], processes=left(-9)) == []
    short = Delay(at, 0.1)
    assert sentences("STOP", [*stopped(), struck], faults=[short], fired=[1], processes=left(-9))


def test_an_engine_that_was_dead_by_then_is_not_judged() -> None:
    events = [*failed(t=90), *stopped()[-2:]]
    assert sentences("STOP", events, processes=left(11)) == []
