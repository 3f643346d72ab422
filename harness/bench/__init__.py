"""Benchmarks: what the harness is measured against, always in paired rounds on the same machine at the same time.

Each is a function from the number of rounds, the number of lanes (None for the machine's default) and a place to show
progress, to a JSON object with ``figures``, ``ratio``, ``runs``, ``versions`` and ``cores``.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from rich.console import RenderableType

Bench: TypeAlias = Callable[[int, int | None, Callable[[str], None]], dict[str, Any]]

NAMES = ("throughput",)


class BenchError(ValueError):
    """A benchmark that does not exist or cannot be run; one clear sentence."""


def get(name: str) -> Bench:
    """The benchmark of that name. Raises BenchError."""
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(NAMES)}"
        raise BenchError(f"no benchmark '{name}'; {hint}")
    measure: Bench = importlib.import_module(f"harness.bench.{name}").measure
    return measure


def table(result: dict[str, Any]) -> RenderableType:
    """The result as a person reads it: one line per figure, then the ratio."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_row("benchmark", result["name"])
    for name, value in result["figures"].items():
        words = ", ".join(f"{one:g}" for one in value) if isinstance(value, list) else f"{value:g}"
        grid.add_row(name.replace("_", " "), words)
    low, high = result["interval"]
    grid.add_row("ratio", Text(f"{result['ratio']:.1f}  (95 % interval {low:.1f} to {high:.1f})", style="bold"))
    grid.add_row("runs", ", ".join(f"{name} {count}" for name, count in result["runs"].items()))
    grid.add_row("cores", str(result["cores"]))
    return grid
