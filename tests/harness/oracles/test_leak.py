"""LEAK: what a client gives up, the engine gives up too."""

from __future__ import annotations

import pytest

from tests.harness.synthetic import STARTED, mark, sentences


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("requests", "r0#0, r1#1", "the engine still holds r0#0, r1#1 although every stream is over"),
        ("pages", "", "pages of the cache are still in use although every stream is over"),
        ("reference", "", "the engine's client is still there although nothing refers to it any more"),
        ("processes", "dp0.rank1", "dp0.rank1: still running although nothing refers to the engine's client any more"),
    ],
)
def test_what_is_kept_is_found(kind: str, text: str, words: str) -> None:
    assert sentences("LEAK", [*STARTED, mark(20, "demand", kind, ok=False, text=text)]) == [words]
    assert sentences("LEAK", [*STARTED, mark(20, "demand", kind)]) == []
