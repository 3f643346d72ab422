"""BLAST: what goes wrong with one request stays with it."""

from __future__ import annotations

from harness.history import Event
from tests.harness.synthetic import STARTED, mark, request, sentences


def ended(kind: str, text: str, poison: bool = False) -> list[Event]:
    sent = mark(10, "request.sent", "poison" if poison else "", 0)
    return [*STARTED, sent, mark(20, "request.finished", kind, 0, text=text)]


def test_a_sound_request_that_is_refused_or_aborted_is_found() -> None:
    assert sentences("BLAST", [*STARTED, *request(10, (7, 8))]) == []
    assert sentences("BLAST", ended("error", "invalid|no")) == [
        "request r0 was refused, and nothing was wrong with it: no"
    ]
    assert sentences("BLAST", ended("abort", "r0")) == ["request r0 was aborted, and nobody had asked for that"]


def test_a_request_that_nobody_can_serve_must_be_refused_for_what_it_is() -> None:
    assert sentences("BLAST", ended("error", "invalid|no", poison=True)) == []
    assert sentences("BLAST", [*ended("length", "r0", poison=True)])
    assert sentences("BLAST", ended("error", "internal|no", poison=True))
