"""ORDER: the done-frame rule, and outputs in the order of production."""

from __future__ import annotations

import pytest

from tests.harness.synthetic import DEAD, call, findings, mark, process, relay, request, sentences

ACTED = call(500, "dp0.rank1", "tp.all_reduce", "before", number=9)


@pytest.mark.parametrize(
    ("frames", "wrong"),
    [
        ([("hello", 1), ("done", 2), ("hello", 3)], "a hello after the done frame"),
        ([("hello", 1), ("done", 2), ("done", 3)], "a second done frame"),
        ([("hello", 1), ("step", 1)], "step frame 1 before the done frame"),
        ([("hello", 1), ("done", 2), ("step", 1), ("step", 3)], "step frame 3 after step frame 1"),
        ([("hello", 1), ("done", 2), ("step", 1), ("step", 1)], "step frame 1 after step frame 1"),
    ],
)
def test_a_rank_that_acts_on_a_wrong_frame_is_found(frames: list[tuple[str, int]], wrong: str) -> None:
    assert sentences("ORDER", [*relay(*frames), ACTED]) == [f"dp0.rank1 acted on {wrong}"]
    assert sentences("ORDER", relay(*frames)) == [], "it saw the frame and left"


@pytest.mark.parametrize(
    "frames", [[("hello", 1), ("hello", 2), ("done", 3), ("step", 1), ("step", 2)], [("go", 0), ("step", 1)]]
)
def test_a_rank_that_acts_on_the_right_frames_is_not(frames: list[tuple[str, int]]) -> None:
    assert sentences("ORDER", [*relay(*frames), ACTED]) == []


def test_the_event_is_named() -> None:
    (found,) = findings("ORDER", [*relay(("go", 0), ("step", 2)), ACTED])
    assert (found.role, found.event) == ("dp0.rank1", "dp0.rank1:relay.recv[step]#1:after")


def test_output_messages_out_of_order_are_found_if_the_client_acts_on_one() -> None:
    sent = mark(5, "request.sent", number=0)
    outputs = [sent, *(call(10 + n, "client", "output.recv", "after", "outputs", 1, n) for n in (1, 3))]
    refused = mark(20, "request.failed", "EngineDeadError", number=0, ok=False, text=DEAD)
    first, second = (mark(t, "request.token", number=0) for t in (14, 15))
    assert sentences("ORDER", [*outputs, first, refused]) == []
    assert sentences("ORDER", outputs, processes=[process("client", -9), process("dp0.rank0", 13)]) == []
    assert sentences("ORDER", [*outputs, mark(14, "request.given_up"), mark(14, "shutdown", "begin")]) == []
    read_on = call(15, "client", "output.recv", "after", "outputs", 1, 4)
    for acted in ([read_on], [first, second]):
        assert sentences("ORDER", [*outputs, *acted, refused]) == ["output message 3 came where 2 was due"]


def test_tokens_after_the_end_are_found() -> None:
    served = request(10, (7, 8))
    assert sentences("ORDER", served) == []
    late = mark(400, "request.token", number=0, value=9)
    assert sentences("ORDER", [*served, late]) == ["request r0 got 1 tokens after its end"]
