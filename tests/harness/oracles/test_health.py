"""HEALTH: what health says agrees with what the engine can do."""

from __future__ import annotations

import pytest

from harness.history import Event
from tests.harness.synthetic import DEAD, KILL_RANK_0, STARTED, failed, mark, process, request, sentences


def health(t: int, word: str) -> Event:
    return mark(t, "health", word, ok=word == "green", text="" if word == "green" else DEAD)


@pytest.mark.parametrize(("word", "found"), [("green", True), ("dead", False)])
def test_green_after_a_user_was_told_of_the_death_is_found(word: str, found: bool) -> None:
    events = [*failed(t=90), health(95, word)]
    told = sentences("HEALTH", events, faults=[KILL_RANK_0], fired=[1])
    assert told == ["health was green when a user had been told that the engine is dead"] * found


def test_green_before_that_is_right() -> None:
    assert sentences("HEALTH", [*failed(t=90), health(50, "green")], faults=[KILL_RANK_0], fired=[1]) == []


@pytest.mark.parametrize(("t", "found"), [(2_500, False), (4_500, True)])
def test_green_long_after_a_process_has_ended_is_found(t: int, found: bool) -> None:
    processes = [
        process("client", ended=9_000),
        process("dp0.rank0", 0, ended=1_000),
        process("dp0.rank1", ended=9_000),
    ]
    told = sentences("HEALTH", [*STARTED, health(t, "green")], processes=processes, cleanup=9_100)
    assert bool(told) == found
    leaving = [*STARTED, mark(900, "shutdown", "begin"), health(t, "green")]
    assert sentences("HEALTH", leaving, processes=processes, cleanup=9_100) == []


def test_a_dead_engine_that_serves_is_found() -> None:
    red = health(20, "dead")
    (found,) = sentences("HEALTH", [*STARTED, red, *request(30, (7, 8))])
    assert found == "health said that the engine is dead, and request r0 was served after that"
    assert sentences("HEALTH", [*STARTED, *request(10, (7, 8)), red]) == []


def test_an_engine_that_stays_red_around_a_request_that_it_serves_is_found() -> None:
    canary = [mark(101, "request.sent", "r0", 3, value=1), mark(105, "request.finished", "length", 3)]
    events = [*STARTED, mark(100, "demand", "begin"), health(100, "stalled"), *canary]
    (found,) = sentences("HEALTH", [*events, health(110, "stalled")])
    assert found.startswith("health stayed red around a request that was served")
    assert sentences("HEALTH", [*events, health(110, "green")]) == []
    assert sentences("HEALTH", [*events, health(110, "stalled")], stalled=0.5) == []
