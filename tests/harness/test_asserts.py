"""No check of the product may be an assert: python -O takes those away, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(path for folder in ("engine", "harness", "scenarios") for path in (ROOT / folder).rglob("*.py"))


def _what_differs(source: str) -> list[int]:
    """The lines that mean something else under -O."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assert) or (isinstance(node, ast.Name) and node.id == "__debug__")
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_optimiser_takes_nothing_away(path: Path) -> None:
    assert _what_differs(path.read_text()) == []


def test_what_it_would_take_away_is_seen() -> None:
    assert _what_differs("if x:\n    assert y\nz = __debug__\n") == [2, 3]
