"""The heat table of an enumeration: a row for each place, a column for each fault, a mark for what the run came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from harness.report.terminal import finding, plural
from harness.search.cells import ON_FRAMES, ON_INSTANTS, SIDES
from harness.search.enumerate import Colour, Coloured, Enumeration, Pairs, Red
from harness.search.pairs import Pair

MARKS: dict[Colour, tuple[str, str, str]] = {
    "served": ("·", "green", "served as if nothing had been broken"),
    "refused": ("r", "yellow", "refused with a typed error that the fault deserves"),
    "red": ("X", "bold white on red", "a broken rule or a proved wedge"),
    "unknown": ("?", "magenta", "suspected, or out of budget, each time"),
    "missed": ("-", "dim", "the fault did not fire"),
}
"""The sign, the style and the meaning of each colour; the sign says it where there is no colour."""

_NEVER_RUN = ("…", "dim")


def heat_table(result: Enumeration) -> RenderableType:
    """Both tables, what the marks mean, the sums, and each distinct failure in full."""
    grid = {(one.cell.row, one.cell.column): one for one in result.done}
    cells = {(cell.row, cell.column) for cell in result.grid.cells}
    rows = list(dict.fromkeys(cell.row for cell in result.grid.cells))
    sides = {kind: [f"{kind}:{side}" for side in SIDES] for kind in ON_INSTANTS}
    whole = {kind: [kind] for kind in ON_FRAMES}
    tables = [_table("place", sides, rows, cells, grid), _table("frame", whole, rows, cells, grid)]
    parts: list[RenderableType] = []
    for table in tables:
        if table.row_count:
            parts += [table, Text()]
    parts.append(_legend(result.colours))
    parts.append(Text(summary(result)))
    for red in result.reds:
        parts += _red(red, "cell")
    if result.pairs is not None:
        table = _pairs_table(result.pairs)
        if table.row_count:
            parts += [Text(), table]
        parts += [Text(), Text(pairs_summary(result.pairs))]
        for red in result.pairs.reds:
            parts += _red(red, "pair")
    return Group(*parts)


def _red(red: Red, noun: str) -> list[RenderableType]:
    names = "; ".join(cell.name for cell in red.cells[:3])
    more = f"; and {len(red.cells) - 3} more" if len(red.cells) > 3 else ""
    return [Text(), finding(red.trial.verdict), Text(f"  in {plural(len(red.cells), noun)}: {names}{more}")]


def summary(result: Enumeration) -> str:
    """``handshake  tp=2 relay=pushpull  412 of 412 cells``: what is finished, and what it took."""
    cells = len(result.grid.cells)
    return (
        f"{result.phase}  tp={result.tp} relay={result.relay}  {result.settled} of {cells} cells settled   "
        f"{plural(result.runs, 'run')} in {result.seconds:.0f} s   nothing broken: {result.grid.dry}"
    )


def pairs_summary(pairs: Pairs) -> str:
    """``pairs: 300 of 8,412 run, 2,118 pruned by lineage``, how many were missed, and what the pruning was worth."""
    colours = pairs.colours
    text = f"pairs: {len(pairs.done):,} of {pairs.met:,} run, {pairs.pruned:,} pruned by lineage"
    if colours["missed"]:
        text += f"; in {colours['missed']:,} a fault did not fire"
    if pairs.checked:
        text += f"\n{pairs.checked:,} of the pruned were run all the same, and {len(pairs.differing):,} came to"
        text += " something else than their first fault alone"
        for one in pairs.differing:
            text += f"\n  {one.colour}: {one.cell.name}"
    return text


def heat_object(result: Enumeration) -> dict[str, Any]:
    """The same as one JSON object."""
    return {
        "phase": result.phase,
        "target": result.target,
        "relay": result.relay,
        "tp": result.tp,
        "cells": len(result.grid.cells),
        "settled": result.settled,
        **{colour: result.colours[colour] for colour in MARKS},
        "impossible": list(result.grid.impossible),
        "dry": result.grid.dry.words,
        "runs": result.runs,
        "seconds": result.seconds,
        "grid": [{"place": one.cell.row, "fault": one.cell.column, **_came_to(one)} for one in result.done],
        "found": [_red_object(red) for red in result.reds],
        "pairs": None if result.pairs is None else _pairs_object(result.pairs),
    }


def _pairs_object(pairs: Pairs) -> dict[str, Any]:
    return {
        "met": pairs.met,
        "pruned": pairs.pruned,
        "chosen": pairs.chosen,
        "run": len(pairs.done),
        **{colour: pairs.colours[colour] for colour in MARKS},
        "checked": pairs.checked,
        "differing": [one.cell.name for one in pairs.differing],
        "grid": [_pair_object(one, one.cell) for one in pairs.done if isinstance(one.cell, Pair)],
        "found": [_red_object(red) for red in pairs.reds],
    }


def _pair_object(one: Coloured, pair: Pair) -> dict[str, Any]:
    return {
        "place": pair.first.row,
        "fault": pair.first.column,
        "then": {"place": pair.row, "fault": pair.column},
        "pruned": pair.pruned,
        **_came_to(one),
    }


def _came_to(one: Coloured) -> dict[str, Any]:
    return {"colour": one.colour, "verdict": one.verdict.word, "runs": one.runs}


def _red_object(red: Red) -> dict[str, Any]:
    return {
        "verdict": red.trial.verdict.word,
        "fingerprint": red.trial.verdict.fingerprint,
        "cells": [cell.name for cell in red.cells],
        "files": red.trial.verdict.files,
    }


def _pairs_table(pairs: Pairs) -> Table:
    """A row for each kind of first fault, a column for each kind of second one, and how many came to what."""
    counts: dict[tuple[str, str], Counter[Colour]] = {}
    for one in pairs.done:
        if isinstance(one.cell, Pair):
            counts.setdefault((one.cell.first.kind, one.cell.kind), Counter())[one.colour] += 1
    kinds = (*ON_INSTANTS, *ON_FRAMES)
    table = _plain_table("first, then")
    there = [kind for kind in kinds if any(then == kind for _, then in counts)]
    for kind in there:
        table.add_column(kind, overflow="fold")
    for first in kinds:
        row = [_counts(counts.get((first, then), Counter())) for then in there]
        if any(row):
            table.add_row(Text(f"{first} ->"), *row)
    return table


def _counts(counts: Counter[Colour]) -> Text:
    """``12· 3r``."""
    return Text(" ").join(Text(f"{counts[it]}{sign}", style) for it, (sign, style, _) in MARKS.items() if counts[it])


def _table(
    what: str,
    columns: dict[str, list[str]],
    rows: Sequence[str],
    cells: set[tuple[str, str]],
    grid: dict[tuple[str, str], Coloured],
) -> Table:
    """One table; a column can have several marks, such as before the call and after it."""
    table = _plain_table(what)
    for head in columns:
        table.add_column(head, justify="center", no_wrap=True)
    before = ""
    for row in rows:
        marks = [
            Text(" ").join(_mark(grid.get((row, one))) if (row, one) in cells else Text(" ") for one in those)
            for those in columns.values()
        ]
        if not any(mark.plain.strip() for mark in marks):
            continue
        role = row.partition(":")[0].partition(" ")[0]
        if before and role != before:
            table.add_section()
        before = role
        table.add_row(Text(row), *marks)
    return table


def _plain_table(what: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
    table.add_column(what, no_wrap=True)
    return table


def _mark(one: Coloured | None) -> Text:
    sign, style = _NEVER_RUN if one is None else MARKS[one.colour][:2]
    return Text(sign, style=style)


def _legend(counts: Counter[str]) -> Text:
    line = Text()
    for colour, (sign, style, meaning) in MARKS.items():
        if counts[colour]:
            line.append(sign, style=style).append(f" {counts[colour]} {meaning}\n")
    return line.append(
        "kill, stop and raise: the first mark is of the instant before the call, the second after it\n", "dim"
    )
