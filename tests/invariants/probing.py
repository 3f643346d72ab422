"""Probes: which tests run a changed line at all. A change to a line that a test never runs cannot make it fail.

A probe stands before the innermost statement around each changed line, so it is passed at least whenever that line
runs. What is not inside a function runs on import, in every test.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from tests.invariants.marking import Change

_IMPORT = "from tests.invariants.reached import reached as _reached"


def probed(source: str, changes: Mapping[int, Change]) -> tuple[str, set[int]]:
    """The source with a probe for each change, by number; and the numbers of those that are passed on import."""
    tree = ast.parse(source)
    places = {number: change.lines(source) for number, change in changes.items()}
    wanted: dict[ast.stmt, list[int]] = {}
    always = set()
    for number, lines in places.items():
        inner = _innermost(tree, lines)
        if inner is None:
            always.add(number)
        else:
            wanted.setdefault(inner, []).append(number)
    if wanted:
        _Prober(wanted).visit(tree)
        tree.body.insert(_after_future(tree.body), ast.parse(_IMPORT).body[0])
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n", always


def _innermost(tree: ast.Module, lines: range) -> ast.stmt | None:
    """The innermost statement inside a function that has all these lines; None if there is none."""
    best: ast.stmt | None = None
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in _statements(function.body):
                if _covers(statement, lines) and (best is None or _covers(best, _span(statement))):
                    best = statement
    return best


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        for node in ast.walk(statement):
            if node is not statement and isinstance(node, ast.stmt):
                yield node


def _span(statement: ast.stmt) -> range:
    first = min([statement.lineno, *(one.lineno for one in getattr(statement, "decorator_list", ()))])
    return range(first, (statement.end_lineno or statement.lineno) + 1)


def _covers(statement: ast.stmt, lines: range) -> bool:
    span = _span(statement)
    return span.start <= lines.start and lines.stop <= span.stop


def _after_future(body: Sequence[ast.stmt]) -> int:
    """Where the first import may stand."""
    at = 0
    for place, statement in enumerate(body):
        docstring = place == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if docstring or (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
            at = place + 1
    return at


class _Prober(ast.NodeTransformer):
    """Puts the probes before their statements; an ``elif`` becomes an ``else`` with an ``if`` in it."""

    def __init__(self, wanted: Mapping[ast.stmt, Sequence[int]]) -> None:
        self._wanted = wanted

    def visit(self, node: ast.AST) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        if not isinstance(node, ast.stmt) or node not in self._wanted:
            return node
        return [*(ast.parse(f"_reached({number})").body[0] for number in self._wanted[node]), node]
