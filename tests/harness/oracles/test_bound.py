"""BOUND: nothing is larger or later than the engine itself declares."""

from __future__ import annotations

import pytest

from harness.faults import BlockLoop, Fault, Flood
from harness.history import Event, Process
from tests.harness.synthetic import DEAD, KILL_RANK_0, call, failed, mark, process, request, sentences


def died(t: int = 1_000) -> list[Process]:
    return [process("client", ended=60_000), process("dp0.rank0", -9, ended=t), process("dp0.rank1", 11, ended=t + 10)]


def told(t: int, *faults: Fault, stalled: float = 0.0) -> list[str]:
    every = [KILL_RANK_0, *faults]
    fired = [1] * len(every)
    return sentences(
        "BOUND", failed(t=t), faults=every, fired=fired, processes=died(), cleanup=t + 100, stalled=stalled
    )


@pytest.mark.parametrize(("t", "found"), [(3_700, False), (4_000, True)])
def test_an_error_long_after_the_death_is_found(t: int, found: bool) -> None:
    assert told(t) == ["request r0 was told 3.00 s after the death of dp0.rank0, and the engine says 0.75 s"] * found


def test_what_the_machine_or_the_client_took_is_added() -> None:
    assert told(4_000, stalled=1.0) == []
    assert told(4_000, BlockLoop(seconds=1.0)) == []


def test_a_request_that_is_not_told_at_all_is_found_when_the_run_is_over() -> None:
    events = failed()[:-1]
    kwargs = {"faults": [KILL_RANK_0], "fired": [1], "processes": died(), "ended": "budget"}
    assert sentences("BOUND", events, cleanup=30_000, **kwargs)
    assert sentences("BOUND", events, cleanup=3_000, **kwargs) == []


@pytest.mark.parametrize(("t", "found"), [(10_000, False), (11_000, True)])
def test_a_start_that_says_so_long_after_the_death_is_found(t: int, found: bool) -> None:
    events = [mark(1, "startup", "begin"), mark(t, "startup", "failed", ok=False, text="StartupError|dp0.rank0|gone")]
    assert bool(sentences("BOUND", events, faults=[KILL_RANK_0], fired=[1], processes=died(), cleanup=t + 100)) == found


@pytest.mark.parametrize(("t", "found"), [(1_200, False), (5_000, True)])
def test_a_request_to_a_dead_engine_is_refused_at_once(t: int, found: bool) -> None:
    second = mark(1_150, "request.sent", number=1)
    end = mark(t, "request.failed", "EngineDeadError", 1, ok=False, text=DEAD)
    events = [*failed(t=1_100), second, end]
    told = sentences("BOUND", events, faults=[KILL_RANK_0], fired=[1], processes=died(), cleanup=t + 100)
    assert bool(told) == found


def crowd(count: int, outputs: int) -> list[Event]:
    """So many requests of two tokens, taken one each millisecond, and rank 0's messages of outputs behind them."""
    ready = [mark(1, "startup", "begin"), mark(5, "startup", "ready", value=2)]
    events = [event for n in range(count) for event in request(10 + n, (7, 8), number=n)]
    events += [call(10 + n, "client", "input.send", "after", "add", n, n + 1) for n in range(count)]
    events += [call(20 + n, "dp0.rank0", "input.recv", "after", "add", n, n + 1) for n in range(count)]
    events += [call(18 + 4 * n, "dp0.rank0", "output.send", "before", "outputs", n, n + 1) for n in range(outputs)]
    return [*ready, *events]


def test_more_requests_at_once_than_the_engine_may_hold_are_found() -> None:
    assert sentences("BOUND", crowd(2, 6)) == []
    found = sentences("BOUND", crowd(3, 6), faults=[Flood(count=3)], fired=[1])
    assert found == ["3 requests were under way at once, and the engine may hold 2"]


def test_requests_of_which_enough_messages_came_in_between_are_not_at_once() -> None:
    early = [call(20, "dp0.rank0", "output.send", "before", "outputs", 9, 9 + n) for n in range(2)]
    assert sentences("BOUND", [*crowd(3, 0), *early[:1]])
    between = [call(21, "dp0.rank0", "output.send", "before", "outputs", 9, 20 + n) for n in range(2)]
    first = [event for event in crowd(3, 0) if event.site != "input.recv"]
    taken = [call(t, "dp0.rank0", "input.recv", "after", "add", n, n + 1) for n, t in enumerate((20, 22, 23))]
    assert sentences("BOUND", [*first, *taken, *between]) == []
