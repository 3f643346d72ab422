"""CONSERVE: what was sent on a link is received once and by whom it was for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest

from harness.faults import Drop
from harness.history import Event
from tests.harness.synthetic import DEAD, STARTED, call, findings, mark, process, relay, sentences

GOOD = (("go", 0), ("step", 1), ("step", 2), ("stop", 3))


def outputs(sent: Sequence[int], got: Sequence[int]) -> list[Event]:
    """Messages of outputs that rank 0 sent and that the client received, by their numbers."""
    events = [call(20 + n, "dp0.rank0", "output.send", side, "outputs", n, n) for n in sent for side in _SIDES]
    return [*STARTED, *events, *(call(30 + n, "client", "output.recv", "after", "outputs", n, n) for n in got)]


_SIDES: tuple[Literal["before", "after"], ...] = ("before", "after")


def test_what_arrives_once_is_right() -> None:
    assert sentences("CONSERVE", [*STARTED, *relay(*GOOD)]) == []
    assert sentences("CONSERVE", outputs((1, 2, 3), (1, 2, 3))) == []


@pytest.mark.parametrize(("got", "lost"), [((1, 3), 2), ((1, 2), 3)])
def test_a_message_of_outputs_that_never_came_is_found(got: Sequence[int], lost: int) -> None:
    (found,) = findings("CONSERVE", outputs((1, 2, 3), got))
    assert found.sentence == f"outputs {lost} of dp0.rank0 on output never reached client"
    assert found.event == f"dp0.rank0:output.send[outputs]#{lost}:after"


def test_a_frame_of_the_relay_that_never_came_is_found() -> None:
    events = [*STARTED, *relay(*GOOD)]
    lost = [event for event in events if not (event.role == "dp0.rank1" and (event.kind, event.number) == ("step", 2))]
    assert sentences("CONSERVE", lost) == ["step 2 of dp0.rank0 on relay never reached dp0.rank1"]
    assert sentences("CONSERVE", lost, relay="unsynchronised") == [], "that one promises nothing"


def test_a_message_that_came_twice_or_from_nobody_is_found() -> None:
    assert sentences("CONSERVE", outputs((1, 2), (1, 2, 2))) == ["client received outputs 2 on output twice"]
    (found,) = sentences("CONSERVE", outputs((1, 2), (1, 2, 3)))
    assert found == "client received outputs 3 on output that dp0.rank0 never sent"


def test_the_records_of_several_ranks_on_one_link_are_counted_together() -> None:
    joins = [call(8, f"dp0.rank{rank}", "control.send", side, "join", 1, 1) for rank in (1, 2) for side in _SIDES]
    got = [call(9, "dp0.rank0", "control.recv", "after", "join", n, 1) for n in (1, 2)]
    assert sentences("CONSERVE", [*STARTED, *joins, *got], tp=3) == []
    assert sentences("CONSERVE", [*STARTED, *joins, *got[:1]], tp=3)
    assert sentences("CONSERVE", [*STARTED, *joins, *got, got[0]], tp=3)


def test_a_loss_inside_is_found_even_where_an_error_came_of_it_and_one_at_the_end_is_not() -> None:
    told = mark(90, "request.failed", "EngineDeadError", 0, ok=False, text=DEAD)
    processes = [process("client"), process("dp0.rank0", 10), process("dp0.rank1", 11)]
    assert sentences("CONSERVE", [*outputs((1, 2, 3), (1, 3)), told], processes=processes)
    assert sentences("CONSERVE", [*outputs((1, 2, 3), (1, 2)), told], processes=processes) == []


def test_what_a_fault_took_or_a_dead_end_had_is_not_held_against_anybody() -> None:
    drop = Drop(link="output", frame="outputs", victim="dp0.rank0", nth=2)
    assert sentences("CONSERVE", outputs((1, 2, 3), (1, 3)), faults=[drop], fired=[1]) == []
    assert sentences("CONSERVE", outputs((1, 2, 3), (1, 3)), faults=[drop], fired=[0])
    dead = [process("client"), process("dp0.rank0", -9), process("dp0.rank1", 11)]
    assert sentences("CONSERVE", outputs((1, 2, 3), (1, 3)), processes=dead) == []


def test_the_last_request_may_come_when_the_engine_has_left() -> None:
    sent = [call(20 + n, "client", "input.send", "after", "abort", n, n) for n in (1, 2, 3)]
    got = [call(30 + n, "dp0.rank0", "input.recv", "after", "abort", n, n) for n in (1, 2, 3)]
    begun = [call(20 + n, "client", "input.send", "before", "abort", n, n) for n in (1, 2, 3)]
    assert sentences("CONSERVE", [*STARTED, *begun, *sent, *got[:2]]) == []
    assert sentences("CONSERVE", [*STARTED, *begun, *sent, got[0], got[2]])
