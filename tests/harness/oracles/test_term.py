"""TERM: everything that a user asked for ends exactly once."""

from __future__ import annotations

from tests.harness.synthetic import DEAD, STARTED, mark, process, request, sentences


def test_a_request_that_never_ends_is_found() -> None:
    sent = [*STARTED, mark(10, "request.sent", number=0)]
    assert sentences("TERM", sent) == ["request r0 never ended"]
    assert sentences("TERM", [*sent, mark(90, "request.finished", "length", 0)]) == []


def test_a_request_that_ends_twice_is_found() -> None:
    events = request(10, (7, 8))
    assert sentences("TERM", events) == []
    again = mark(90, "request.failed", "EngineDeadError", 0, ok=False, text=DEAD)
    assert sentences("TERM", [*events, again]) == ["request r0 ended 2 times"]


def test_a_stream_that_stops_without_a_reason_is_found() -> None:
    assert sentences("TERM", request(10, (7, 8), end="none")) == ["request r0 stopped without a reason"]
    assert sentences("TERM", request(10, (7, 8), end="stop")) == []


def test_a_client_program_that_broke_is_found_and_its_last_words_are_quoted() -> None:
    processes = [process("client", 70, log="Traceback\nValueError: no"), process("dp0.rank0"), process("dp0.rank1")]
    assert sentences("TERM", processes=processes) == ["the client program ended with status 70: ValueError: no"]
    assert sentences("TERM", processes=[process("client", 0), *processes[1:]]) == []
