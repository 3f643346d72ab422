"""GOLD: tokens are those of the reference."""

from __future__ import annotations

from tests.harness.synthetic import DEAD, mark, request, sentences


def test_tokens_that_are_not_the_reference_are_found() -> None:
    assert sentences("GOLD", request(10, (7, 9))) == ["request r0 got tokens [7, 9], the reference says [7, 8]"]
    assert sentences("GOLD", request(10, (7, 8))) == []
    assert sentences("GOLD", request(10, (7,))), "too few of a request that was served"


def test_a_beginning_of_the_reference_before_an_error_is_right() -> None:
    failed = mark(90, "request.failed", "EngineDeadError", 0, ok=False, text=DEAD)
    assert sentences("GOLD", [*request(10, (7,))[:-1], failed]) == []
    assert sentences("GOLD", [*request(10, (9,))[:-1], failed])


def test_a_canary_has_the_beginning_that_it_asked_for() -> None:
    sent = mark(10, "request.sent", "r0", 3, value=1)
    end = mark(12, "request.finished", "length", 3)
    assert sentences("GOLD", [sent, mark(11, "request.token", number=3, value=7), end]) == []
    assert sentences("GOLD", [sent, mark(11, "request.token", number=3, value=8), end])
