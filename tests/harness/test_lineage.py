"""Lineage: what can have led to what users were told, and what cannot, in histories written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from harness.history import Event, Frame
from harness.search.lineage import Lineage
from harness.targets import get
from tests.harness.synthetic import MS, STARTED, call, failed, history, mark, process

TARGET = get("engine")
RANK_0, RANK_1 = "dp0.rank0", "dp0.rank1"
SERVED = [*STARTED, mark(10, "request.sent", number=0), mark(90, "request.finished", "length", 0)]
"""What a user is told until 90 ms."""


ALIVE = [process(role, None) for role in ("client", RANK_0, RANK_1)]


def lineage(events: Sequence[Event], **kwargs: Any) -> Lineage:
    """Of a run whose processes all live until its end, if it is not said otherwise."""
    return Lineage.of(history(events, **{"processes": ALIVE, **kwargs}), TARGET)


def frame(t: int, link: str, kind: str, direction: str = "to_connector", number: int = -1) -> Frame:
    connector = RANK_1 if link in ("relay", "control") else RANK_0
    return Frame(t * MS, link, connector, direction, 1, kind, number, 1)


def output(sent: int, received: int) -> list[Event]:
    """A message of rank 0 to the client."""
    return [
        call(sent, RANK_0, "output.send", "before", "outputs"),
        call(received, "client", "output.recv", kind="outputs"),
    ]


def test_what_comes_after_the_last_word_to_a_user_is_not_of_its_lineage() -> None:
    found = lineage([*SERVED, call(95, "client", "output.close", "before")])
    assert found.holds("client", 90 * MS)
    assert not found.holds("client", 91 * MS)
    assert not lineage([mark(1, "startup", "begin")]).until, "nobody was told anything"


def test_a_message_carries_what_its_sender_did_before_it() -> None:
    found = lineage([*SERVED, *output(40, 50), call(60, RANK_0, "relay.send", "before", "step")])
    assert found.holds(RANK_0, 40 * MS)
    assert not found.holds(RANK_0, 60 * MS)


def test_a_message_that_comes_after_the_last_word_carries_nothing() -> None:
    assert RANK_0 not in lineage([*SERVED, *output(80, 95)]).until


def test_messages_carry_over_several_roles_and_over_threads() -> None:
    other = structs.replace(call(30, RANK_1, "store.check", "before"), tid=2)
    result = [call(35, RANK_1, "control.send", "before", "result"), call(38, RANK_0, "control.recv", kind="result")]
    found = lineage([*SERVED, other, *result, *output(40, 50), call(45, RANK_1, "relay.poll")])
    assert found.holds(RANK_1, 30 * MS)
    assert not found.holds(RANK_1, 45 * MS)


def test_a_collective_carries_what_each_rank_did_before_it() -> None:
    def at(t: int, role: str, side: Any) -> Event:
        return call(t, role, "tp.all_reduce", side, number=1)

    both = [at(20, RANK_0, "before"), at(30, RANK_1, "before"), at(31, RANK_1, "after"), at(32, RANK_0, "after")]
    found = lineage([*SERVED, *both, *output(40, 50), call(60, RANK_1, "relay.close", "before")])
    assert found.holds(RANK_1, 31 * MS)
    assert not found.holds(RANK_1, 60 * MS)


def test_the_store_and_the_making_of_a_group_carry_too() -> None:
    store = [call(20, RANK_1, "store.set", "before"), call(30, RANK_0, "store.get")]
    assert lineage([*SERVED, *store, *output(40, 50)]).holds(RANK_1, 20 * MS)


def test_a_poll_that_watches_descriptors_may_come_back_for_anything() -> None:
    for text, held in (("fd|control", True), ("control", False)):
        poll = structs.replace(call(30, RANK_0, "control.poll"), text=text)
        found = lineage([*SERVED, call(20, RANK_1, "store.set", "before"), poll, *output(40, 50)])
        assert found.holds(RANK_1, 20 * MS) is held, text


def test_a_death_is_noticed_by_everybody_at_once() -> None:
    events = [*SERVED, call(20, RANK_1, "store.set", "before"), call(30, RANK_0, "relay.close"), *output(40, 50)]
    assert not lineage(events).holds(RANK_1, 20 * MS)
    assert lineage(events, processes=[*ALIVE[:2], process(RANK_1, -9, ended=21)]).holds(RANK_1, 20 * MS)


def test_a_rank_that_leaves_out_of_order_may_have_reported_all_that_it_did() -> None:
    events = [*failed(), call(50, RANK_0, "relay.close", "before"), call(92, RANK_0, "control.close", "before")]
    for status, held in ((12, True), (0, False)):
        found = lineage(events, processes=[ALIVE[0], process(RANK_0, status, ended=95), ALIVE[2]])
        assert found.holds(RANK_0, 50 * MS) is held
        assert not found.holds(RANK_0, 92 * MS)


def test_until_the_engine_is_ready_every_rank_may_have_reported() -> None:
    events = [mark(1, "startup", "begin"), call(3, RANK_1, "relay.bind", "before"), mark(5, "startup", "ready")]
    assert lineage(events).holds(RANK_1, 3 * MS)


def test_health_hears_the_pulse_of_every_rank() -> None:
    events = [*STARTED, call(20, RANK_1, "relay.recv"), mark(30, "health", "green")]
    assert lineage(events).holds(RANK_1, 20 * MS)


@pytest.mark.parametrize(
    ("received", "touches"),
    [
        ([call(30, RANK_1, "relay.recv", kind="step", number=4)], True),
        ([call(30, RANK_1, "relay.recv", kind="step", number=5)], False),
        ([call(30, RANK_1, "relay.recv", kind="go", number=4)], False),
        ([call(70, RANK_1, "relay.recv", kind="step", number=4)], False),
        ([], False),
    ],
)
def test_a_message_touches_the_lineage_if_its_receive_does(received: list[Event], touches: bool) -> None:
    result = [call(39, RANK_1, "control.send", "before", "result"), call(40, RANK_0, "control.recv", kind="result")]
    found = lineage([*SERVED, *received, *result, *output(45, 50)])
    assert found.receives(frame(20, "relay", "step", number=4)) is touches
    assert found.carries(frame(20, "relay", "step", number=4)), "the connection goes on"
    assert not found.carries(frame(60, "relay", "step", number=4))


def test_a_command_of_the_connection_is_received_without_a_trace() -> None:
    found = lineage([*SERVED, *output(40, 50)])
    assert found.receives(frame(20, "output", "READY"))
    assert not found.receives(frame(60, "output", "READY", "to_connector"))


def test_a_frame_that_a_proxy_saw_is_an_edge() -> None:
    events = [*SERVED, call(10, RANK_0, "relay.bind", "before"), call(30, "client", "startup.poll")]
    seen = [frame(20, "startup", "READY", "to_binder")]
    assert not lineage(events).holds(RANK_0, 10 * MS)
    assert lineage(events, frames=seen).holds(RANK_0, 10 * MS)
