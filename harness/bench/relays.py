"""relays: what each relay strategy does in each of the known ways to wedge, from runs.

The rows are the wedges W1 to W24 that a rank relay of this kind can come to (`shared/spec/relay.md`, 2.3); the columns
are the safe strategies and the bad ones that are kept to be caught. A cell is what its scenarios came to: every shipped
scenario whose tags hold the row's name and whose ``[expect]`` speaks of the strategy. Nothing in the table is written
by hand but the reasons of the cells that no scenario can fill.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from harness import folder
from harness.bench import BenchError, Options
from harness.bench.journal import Journal
from harness.bench.rows import ROWS, UNSAFE, Row
from harness.history import History
from harness.oracles import outcome
from harness.plan import Plan
from harness.scenario import Member, Scenario, shipped
from harness.targets import get
from harness.trial import Trial, trials
from harness.verdict import Word
from harness.world.real import RealWorld

if TYPE_CHECKING:
    from rich.console import RenderableType

USES = ("rounds", "tp", "relays", "lanes", "out", "fresh")
"""The options that apply."""

RUNS = 3
"""Runs of each plan if nothing else is said."""

WEDGE, SERVED, ERROR = "wedge", "served", "error"


class Case(Struct, frozen=True):
    """One plan of one cell: which row and strategy, what the file expects, and where it comes from."""

    row: str
    relay: str
    scenario: str
    member: str
    plan: Plan
    expect: Word


def measure(options: Options) -> dict[str, Any]:
    """Runs what is not in the journal yet. Raises BenchError for a strategy that the table does not have."""
    runs = options.rounds or RUNS
    columns = _columns(options.relays)
    cases = [case for case in _cases(shipped(), columns) if options.tp in (None, case.plan.topology.tp)]
    with Journal(options.out / "relays.jsonl", fresh=options.fresh) as journal:
        wanted = [(case, run) for case in cases for run in range(runs)]
        missing = [(case, run) for case, run in wanted if journal.told(case.plan.digest, run) is None]
        if missing:
            _run(missing, journal, options)
        told = [(case, journal.told(case.plan.digest, run) or "") for case, run in wanted]
    return {
        "name": "relays",
        "runs": len(told),
        "resumed": len(wanted) - len(missing),
        "relays": list(columns),
        "safe": [relay for relay in columns if relay not in UNSAFE],
        "rows": [_row(row, columns, told) for row in ROWS],
    }


def good(result: dict[str, Any]) -> bool:
    """Whether every cell is what its scenarios expect, those of safe strategies all served or an error, none empty."""
    return all(cell["as_expected"] for row in result["rows"] for cell in row["cells"].values())


def table(result: dict[str, Any]) -> RenderableType:
    """Rows by strategies; below it what the rows are and the reasons of the cells without runs."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column("")
    for relay in result["relays"]:
        grid.add_column(relay.replace("-", "-\n"))
    reasons: list[str] = []
    for row in result["rows"]:
        cells = []
        for relay in result["relays"]:
            cell = row["cells"][relay]
            mark = ""
            if not cell["runs"]:
                if cell["reason"] not in reasons:
                    reasons.append(cell["reason"])
                mark = f" [{reasons.index(cell['reason']) + 1}]"
            style = {"wedge": "red", "served": "green", "n/a": "dim"}.get(cell["word"].partition(" ")[0], "")
            cells.append(Text(cell["word"] + mark, style="bold red" if not cell["as_expected"] else style))
        grid.add_row(row["row"], *cells)
    notes = [Text(f"{row['row']:<4} {row['title']}") for row in result["rows"]]
    notes += [Text(f"[{index}]  {reason or 'no scenario'}") for index, reason in enumerate(reasons, 1)]
    safe = ", ".join(result["safe"])
    verdict = "every cell is as expected" if good(result) else "cells in bold red are not as expected"
    return Group(grid, Text(""), *notes, Text(""), Text(f"{result['runs']} runs; safe: {safe}; {verdict}"))


def _columns(relays: tuple[str, ...]) -> tuple[str, ...]:
    known = (*get("engine").safe_relays(), *UNSAFE)
    for relay in relays:
        if relay not in known:
            raise BenchError(f"relays: no column '{relay}'; there is {', '.join(known)}")
    return tuple(relay for relay in known if not relays or relay in relays)


def _cases(scenarios: Iterable[Scenario], columns: tuple[str, ...]) -> list[Case]:
    rows = {row.name for row in ROWS}
    cases = []
    for scenario in scenarios:
        for row in rows.intersection(scenario.tags):
            for member in scenario.members:
                cases += [_case(row, relay, scenario, member) for relay in columns if relay in member.expect]
    return sorted(cases, key=lambda case: (case.row, case.relay, case.scenario, case.member))


def _case(row: str, relay: str, scenario: Scenario, member: Member) -> Case:
    plugins = (*member.plan.engine.plugins, *UNSAFE.get(relay, ()))
    plan = structs.replace(
        member.plan,
        engine=structs.replace(member.plan.engine, relay=relay, plugins=tuple(dict.fromkeys(plugins))),
    )
    return Case(row, relay, scenario.name, member.name, plan, member.expect[relay])


def _run(missing: list[tuple[Case, int]], journal: Journal, options: Options) -> None:
    """Two cells may share a plan, and a plan has several runs: each run is told once, by digest and number."""
    waiting: defaultdict[str, list[tuple[Case, int]]] = defaultdict(list)
    plans = []
    for case, run in missing:
        if all(run != other for _, other in waiting[case.plan.digest]):
            waiting[case.plan.digest].append((case, run))
            plans.append(case.plan)
    with (
        RealWorld(lanes=options.lanes or RealWorld.default_lanes()) as world,
        closing(trials(world, plans, scenario="relays")) as ended,
    ):
        for done, trial in enumerate(ended, 1):
            case, run = waiting[trial.plan.digest].pop(0)
            if trial.verdict.verdict != case.expect and not trial.verdict.ok:
                named = structs.replace(trial.verdict, scenario=case.scenario)
                folder.write(options.out, structs.replace(trial, verdict=named))
            journal.add(trial.plan.digest, run, _told(trial))
            options.show(f"measuring  run {done} of {len(plans)}")


def _told(trial: Trial) -> str:
    """The verdict's word and what the caller saw, as in ``passed/error rank 1``.

    A plan with a seeded bug and no fault excuses no error; the error is then what the row is about, not its being one.
    """
    verdict, seen = trial.verdict, _seen(trial.history)
    if verdict.ok or (verdict.verdict == "violated" and not trial.plan.faults and seen.startswith(ERROR)):
        return f"{verdict.verdict}/{seen}"
    if verdict.verdict == "violated":
        return f"violated/{'+'.join(sorted({finding.oracle for finding in verdict.findings}))}"
    return f"{verdict.verdict}/{verdict.word}"


def _seen(history: History) -> str:
    """What the caller of a run that passed saw: everything served, or an error that names somebody."""
    failed = outcome.startup_error(history)
    endings = [ending for request in outcome.requests(history) for ending in request.failed]
    culprits = sorted({_short(ending.culprit) for ending in ([failed] if failed else endings)})
    if culprits:
        return f"{ERROR} {', '.join(culprits)}"
    return "no caller is left" if outcome.client_was_killed(history) else SERVED


def _row(row: Row, columns: tuple[str, ...], told: list[tuple[Case, str]]) -> dict[str, Any]:
    return {
        "row": row.name,
        "title": row.title,
        "cells": {
            relay: _cell(row, relay, [one for one in told if (one[0].row, one[0].relay) == (row.name, relay)])
            for relay in columns
        },
    }


def _cell(row: Row, relay: str, told: list[tuple[Case, str]]) -> dict[str, Any]:
    if not told:
        return {
            "word": "n/a",
            "runs": 0,
            "reason": row.reason(relay),
            "as_expected": bool(row.reason(relay)),
            "told": {},
        }
    counts = Counter(what for _, what in told)
    expected = all(what.partition("/")[0] == case.expect for case, what in told)
    # An error where nothing was broken but the engine itself by a seeded bug is what a safe strategy has to answer.
    safe = relay in UNSAFE or all(what.startswith("passed/") or f"/{ERROR}" in what for _, what in told)
    return {
        "word": _word(counts),
        "runs": len(told),
        "reason": "",
        "as_expected": expected and safe,
        "told": dict(counts),
    }


def _short(role: str) -> str:
    """A role as the table writes it: dp0.rank1 is rank 1, and an error that names no role names nobody."""
    return role.replace("dp0.rank", "rank ") or "nobody"


def _word(counts: Counter[str]) -> str:
    """The worst that came up: a wedge, a broken rule, a run that says nothing, an error, served."""
    kinds: defaultdict[str, set[str]] = defaultdict(set)
    for what in counts:
        word, _, seen = what.partition("/")
        kinds["passed" if seen.startswith(ERROR) else word].add(seen)
    if "wedged" in kinds:
        return WEDGE
    for word in ("violated", "budget", "vacuous"):
        if word in kinds:
            return f"{word} {', '.join(sorted(kinds[word]))}" if word == "violated" else word
    named = sorted({name for seen in kinds["passed"] if seen.startswith(ERROR) for name in seen[6:].split(", ")})
    if named:
        return f"{ERROR}: {', '.join(named)}"
    return SERVED if SERVED in kinds["passed"] else next(iter(sorted(kinds["passed"])))
