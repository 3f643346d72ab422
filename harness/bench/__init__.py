"""Benchmarks: what the harness and the engine are measured by.

Each is a module with a `measure`: from :class:`Options` to a JSON object that has at least ``name``. It may add a
``table`` of its own, and ``good``, which says whether the figures are what they have to be (the exit code is 1 if not).
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from msgspec import Struct

if TYPE_CHECKING:
    from rich.console import RenderableType

NAMES = ("throughput", "starts", "relays", "client", "seam", "proxy", "proof", "controls", "bugs", "shrink", "search")


class Options(Struct, frozen=True):
    """How to measure. What is None is the benchmark's own default.

    ``rounds`` is how often; ``messages`` how many are carried each time; ``lanes`` how many plans run at the same time;
    ``tp``, ``relays`` and ``bugs`` what to measure; ``out`` where a benchmark that can be resumed keeps what it has
    measured, ``fresh`` begins anew; ``leave`` for how many seconds a wedge is watched on; ``show`` displays a line of
    progress.
    """

    rounds: int | None = None
    messages: int | None = None
    lanes: int | None = None
    tp: int | None = None
    relays: tuple[str, ...] = ()
    bugs: tuple[str, ...] = ()
    out: Path = Path(".nowedge")
    fresh: bool = False
    leave: float = 0.0
    show: Callable[[str], None] = lambda line: None


_FLAGS = {
    "rounds": "--rounds",
    "messages": "--messages",
    "lanes": "--lanes",
    "tp": "--tp",
    "relays": "--relay",
    "bugs": "--bug",
    "fresh": "--fresh",
    "leave": "--leave",
}
"""How the options are written. Where nothing is kept `out` says nothing, which does no harm."""


class Bench(Protocol):
    """What a benchmark's module offers; `table` and `good` may be missing, see `table` and `good` below."""

    @property
    def USES(self) -> tuple[str, ...]:
        """The names of the options that apply."""

    def measure(self, options: Options) -> dict[str, Any]:
        """Measures. Raises BenchError."""


class BenchError(ValueError):
    """A benchmark that does not exist or cannot be run; one clear sentence."""


def get(name: str) -> Bench:
    """The benchmark of that name. Raises BenchError."""
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(NAMES)}"
        raise BenchError(f"no benchmark '{name}'; {hint}")
    return cast(Bench, importlib.import_module(f"harness.bench.{name}"))


def measure(name: str, options: Options) -> dict[str, Any]:
    """The result of the benchmark of that name. Raises BenchError, also for an option that does not apply to it."""
    bench, plain = get(name), Options()
    given = [field for field in _FLAGS if getattr(options, field) != getattr(plain, field)]
    idle = [_FLAGS[field] for field in given if field not in bench.USES]
    if idle:
        takes = ", ".join(flag for field, flag in _FLAGS.items() if field in bench.USES)
        raise BenchError(f"{name}: leave {', '.join(idle)} out; it takes {takes}")
    return bench.measure(options)


def good(bench: Bench, result: dict[str, Any]) -> bool:
    """Whether the result is what it has to be; a benchmark that does not say is content with any."""
    judge = getattr(bench, "good", None)
    return judge is None or bool(judge(result))


def table(bench: Bench, result: dict[str, Any]) -> RenderableType:
    """The result as a person reads it: the benchmark's own table, else one line per figure and then the ratio."""
    own = getattr(bench, "table", None)
    return cast("RenderableType", own(result)) if own is not None else _figures(result)


def _figures(result: dict[str, Any]) -> RenderableType:
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
