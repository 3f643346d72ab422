"""PROGRESS: an engine that lives and owes something gets on with it."""

from __future__ import annotations

import pytest

from harness.faults import BlockLoop, SlowReader
from harness.history import Event
from harness.verdict import Finding
from tests.harness.synthetic import STARTED, call, findings, mark, request, sentences


def silent(until: int) -> list[Event]:
    """A request that is served after a silence: the engine's last move is at 20 ms, the next at ``until``."""
    return [
        *STARTED,
        mark(10, "request.sent", number=0),
        call(20, "dp0.rank0", "input.recv", "after", "add", 1, 1),
        call(until, "dp0.rank0", "tp.all_reduce", "after", number=1),
        mark(until + 1, "request.finished", "length", 0),
    ]


@pytest.mark.parametrize(("until", "found"), [(4_000, False), (5_000, True)])
def test_a_silence_beyond_the_engines_own_deadline_is_found(until: int, found: bool) -> None:
    told = findings("PROGRESS", silent(until), cleanup=until + 100)
    assert bool(told) == found
    if told:
        assert told[0].sentence.startswith("nothing moved for 4.98 s while request r0 was under way")
        assert told[0].event == "dp0.rank0:input.recv[add]#1:after"


def test_silence_is_no_finding_while_nothing_is_owed_or_where_the_engine_waits_for_ever() -> None:
    idle = [*STARTED, *request(10, (7, 8)), *request(9_000, (7, 8), number=1)]
    assert sentences("PROGRESS", idle, cleanup=9_100) == []
    assert sentences("PROGRESS", silent(9_000), cleanup=9_100, relay="unsynchronised") == []


def test_silence_is_no_finding_while_the_machine_or_the_client_stood_still() -> None:
    assert sentences("PROGRESS", silent(5_000), cleanup=5_100, stalled=2.0) == []
    assert sentences("PROGRESS", silent(5_000), cleanup=5_100, faults=[BlockLoop(seconds=2.0)], fired=[1]) == []


def test_a_run_that_ran_out_of_its_budget_in_silence_is_found() -> None:
    stuck = silent(20)[:3]
    assert sentences("PROGRESS", stuck, cleanup=30_000, ended="budget")
    assert sentences("PROGRESS", stuck, cleanup=2_000, ended="budget") == []


def test_a_request_that_is_overtaken_by_a_whole_other_one_is_found() -> None:
    first = [mark(10, "request.sent", number=0), mark(80, "request.token", number=0, value=7)]
    end = mark(81, "request.finished", "length", 0)
    later = request(20, (7, 8), number=1)
    found: list[Finding] = findings("PROGRESS", [*STARTED, *first, end, *later])
    assert [one.sentence for one in found] == ["request r0 got nothing while r1, sent after it, came and was served"]
    in_turn = [*first, mark(22, "request.token", number=0, value=7), end]
    assert sentences("PROGRESS", [*STARTED, *in_turn, *later]) == []


def test_a_reader_that_takes_its_time_is_not_starved() -> None:
    events = [*STARTED, *request(10, (7,))[:-1], *request(20, (7, 8), number=1), *request(80, (7, 8), number=2)]
    events.append(mark(300, "request.token", number=0, value=8))
    assert sentences("PROGRESS", events)
    assert sentences("PROGRESS", events, faults=[SlowReader(seconds=0.1)], fired=[1]) == []


@pytest.mark.parametrize(("steps", "found"), [(20, False), (21, True)])
def test_a_canary_that_takes_too_many_steps_is_found(steps: int, found: bool) -> None:
    demand = [mark(100, "demand", "begin"), mark(101, "request.sent", "r0", 1, value=1)]
    outputs = [call(102 + n, "dp0.rank0", "output.send", "after", "outputs", n, n) for n in range(steps)]
    end = [mark(200, "request.token", number=1, value=7), mark(201, "request.finished", "length", 1)]
    assert bool(sentences("PROGRESS", [*STARTED, *demand, *outputs, *end])) == found
