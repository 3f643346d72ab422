"""Enumeration: every fault of a small set at every place of one phase, each in a run of its own. Nothing is drawn.

A cell is one place and one fault. It is *served* (all that was asked came back as if nothing had been broken),
*refused* (ended with a typed error for which the fault was bad enough), *red* (a rule is broken, or a wedge is proved),
*unknown* (suspected, or out of budget, in each of several runs) or *missed* (the fault did not fire in any of them).
The enumeration is complete when each cell has come to one of the first three.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, structs

from harness import folder
from harness.bug import Bug
from harness.clock import now, seconds_since
from harness.faults import Drop, Duplicate, Fault, Hold, Kill, Raise, Reorder, Reset, Stop
from harness.history import History
from harness.instant import Instant, Side
from harness.oracles import outcome
from harness.plan import Plan, PlanError, check
from harness.search.phases import Phase
from harness.search.places import FramePlace, Places, learn, sides
from harness.targets import Target
from harness.trial import Tally, Trial, trials
from harness.verdict import EXIT_FAILED, EXIT_PASSED, EXIT_UNKNOWN, EXIT_VACUOUS, Verdict
from harness.world import World

DRY_RUNS = 4
"""Runs of each kind from which the places of a phase are learnt."""

AGAIN = 2
"""How often a cell that came to nothing certain is run once more."""

PAUSE = 0.3
"""Seconds for which a stop stops and a hold holds: less than any deadline of the engine, so that it has to serve."""

Colour = Literal["served", "refused", "red", "unknown", "missed"]

SIDES: tuple[Side, ...] = ("before", "after")

ON_INSTANTS: dict[str, Callable[[Instant], Fault]] = {
    "kill": lambda at: Kill(at=at),
    "stop": lambda at: Stop(at=at, seconds=PAUSE),
    "raise": lambda at: Raise(at=at),
}
"""What is done at every instant."""

ON_FRAMES: dict[str, Callable[[FramePlace], Fault]] = {
    "drop": lambda it: Drop(**_named(it)),
    "duplicate": lambda it: Duplicate(**_named(it)),
    "hold": lambda it: Hold(**_named(it), or_after=PAUSE),
    "reorder": lambda it: Reorder(**_named(it)),
    "reset": lambda it: Reset(**_named(it)),
}
"""What is done to every frame."""


def _named(place: FramePlace) -> dict[str, Any]:
    return {name: getattr(place, name) for name in FramePlace.__struct_fields__}


class Cell(Struct, frozen=True):
    """One fault at one place: the row and the column of the table, and the plan."""

    row: str
    column: str
    plan: Plan


class Grid(Struct, frozen=True):
    """All cells of a phase. ``impossible`` names what no plan can say: a fault that makes no sense at its place.

    ``dry``: what the runs came to in which nothing was broken.
    """

    cells: tuple[Cell, ...]
    places: Places
    impossible: tuple[str, ...]
    dry: Tally = Tally(0, {})


class Coloured(Struct, frozen=True):
    """A cell that has been run: what it came to, in how many runs, and the verdict that says so."""

    cell: Cell
    colour: Colour
    runs: int
    verdict: Verdict

    @property
    def settled(self) -> bool:
        return self.colour in ("served", "refused", "red")


class Red(Struct, frozen=True):
    """One distinct failure: the first trial of it, and every cell that failed so."""

    trial: Trial
    cells: tuple[Cell, ...]
    again: Tally


class Enumeration(Struct, frozen=True):
    """What an enumeration came to. ``seconds`` covers the dry runs and the cells."""

    phase: str
    target: str
    relay: str
    tp: int
    grid: Grid
    done: tuple[Coloured, ...]
    reds: tuple[Red, ...]
    runs: int
    seconds: float
    interrupted: bool = False

    def written(self, out: Path) -> Enumeration:
        """The same, with a folder of each distinct failure. Raises FolderError."""
        reds = []
        for red in self.reds:
            verdict = structs.replace(red.trial.verdict, scenario=f"enumerate-{self.phase}")
            verdict = folder.write(out, structs.replace(red.trial, verdict=verdict))
            reds.append(structs.replace(red, trial=structs.replace(red.trial, verdict=verdict)))
        return structs.replace(self, reds=tuple(reds))

    @property
    def colours(self) -> Counter[str]:
        """How many cells came to what."""
        return Counter(one.colour for one in self.done)

    @property
    def settled(self) -> int:
        """How many cells came to something certain."""
        return sum(one.settled for one in self.done)

    @property
    def exit_code(self) -> int:
        """1 with a red cell or dry run, 4 with a cell that is unknown or was not run, 3 with a missed one, else 0."""
        colours = self.colours
        if colours["red"] or any(red.trial.verdict.exit_code == EXIT_FAILED for red in self.reds):
            return EXIT_FAILED
        if colours["unknown"] or len(self.done) < len(self.grid.cells):
            return EXIT_UNKNOWN
        return EXIT_VACUOUS if colours["missed"] else EXIT_PASSED


class Enumerator:
    """Enumerates one phase in a world. ``bug`` is seeded in the engine of every plan."""

    def __init__(
        self,
        world: World,
        target: Target,
        phase: Phase,
        plan: Plan,
        *,
        bug: Bug | None = None,
        watch: Callable[[int, int], None] = lambda done, cells: None,
    ) -> None:
        self._world = world
        self._target = target
        self._phase = phase
        self._plan = plan if bug is None else bug.put_into(plan)
        self._watch = watch
        self._began = now()
        self._runs = 0
        self._done: dict[str, Coloured] = {}
        self._failures: dict[tuple[str, str], list[Trial]] = {}

    def learn(self) -> Grid:
        """Runs the phase with nothing broken, and makes the cells from the runs that came through.

        Raises PlanError if none did. One that failed by itself is a failure like that of a cell.
        """
        observed = structs.replace(self._plan, observe=self._target.links(self._plan))
        through: dict[str, list[History]] = {self._plan.digest: [], observed.digest: []}
        verdicts = []
        with closing(trials(self._world, [self._plan, observed] * DRY_RUNS)) as runs:
            for trial in runs:
                self._runs += 1
                verdicts.append(trial.verdict)
                self._note(trial)
                if self._phase.is_passed_by(trial.history):
                    through[trial.plan.digest].append(trial.history)
        plain, watched = through[self._plan.digest], through[observed.digest]
        if not plain or not watched:
            words = Tally.of(verdicts)
            raise PlanError(f"phase {self._phase.name}: with nothing broken {words}, so there is nothing to enumerate")
        return structs.replace(self._grid(learn(self._phase, plain, watched)), dry=Tally.of(verdicts))

    def _note(self, trial: Trial) -> None:
        verdict = trial.verdict
        if verdict.exit_code in (EXIT_FAILED, EXIT_UNKNOWN):
            self._failures.setdefault((verdict.word, verdict.fingerprint), []).append(trial)

    def _grid(self, places: Places) -> Grid:
        cells, impossible = [], []
        for cell in _cells(self._plan, places):
            try:
                check(cell.plan)
                self._target.check(cell.plan)
            except PlanError:
                impossible.append(f"{cell.column} at {cell.row}")
            else:
                cells.append(cell)
        return Grid(tuple(cells), places, tuple(impossible))

    def run(self, grid: Grid) -> Enumeration:
        """Runs every cell, and again what came to nothing certain; ends early, with what is done, on Ctrl-C."""
        interrupted = False
        left = {cell.plan.digest: cell for cell in grid.cells}
        try:
            for _ in range(1 + AGAIN):
                self._pass(left, len(grid.cells))
                left = {digest: one.cell for digest, one in self._done.items() if not one.settled}
        except KeyboardInterrupt:
            interrupted = True
        return Enumeration(
            phase=self._phase.name,
            target=self._plan.target,
            relay=self._plan.engine.relay,
            tp=self._plan.topology.tp,
            grid=grid,
            done=tuple(self._done[cell.plan.digest] for cell in grid.cells if cell.plan.digest in self._done),
            reds=self._reds(grid),
            runs=self._runs,
            seconds=round(seconds_since(self._began), 3),
            interrupted=interrupted,
        )

    def _pass(self, cells: dict[str, Cell], total: int) -> None:
        plans = [cell.plan for cell in cells.values()]
        with closing(trials(self._world, plans)) as runs:
            for trial in runs:
                self._runs += 1
                cell, verdict = cells[trial.plan.digest], trial.verdict
                before = self._done.get(trial.plan.digest)
                self._done[trial.plan.digest] = Coloured(
                    cell, colour_of(trial), 1 + (before.runs if before else 0), verdict
                )
                self._note(trial)
                self._watch(sum(one.settled for one in self._done.values()), total)

    def _reds(self, grid: Grid) -> tuple[Red, ...]:
        """Distinct failures, those with the most cells first; one that came to something else again is left out."""
        cells = {cell.plan.digest: cell for cell in grid.cells}
        bare = Cell(f"any place of {self._phase.name}", "nothing", self._plan)
        found = []
        for failed in self._failures.values():
            stayed = [trial for trial in failed if self._stays(trial)]
            digests = dict.fromkeys(trial.plan.digest for trial in stayed)
            if stayed:
                tally = Tally.of([trial.verdict for trial in stayed])
                found.append(Red(stayed[0], tuple(cells.get(digest, bare) for digest in digests), tally))
        return tuple(sorted(found, key=lambda red: -len(red.cells)))

    def _stays(self, trial: Trial) -> bool:
        """Whether a failed run still counts: its cell has come to nothing better since, or it is of no cell."""
        cell = self._done.get(trial.plan.digest)
        return cell is None or cell.colour not in ("served", "refused")


def _cells(plan: Plan, places: Places) -> Iterator[Cell]:
    """Every cell there could be, row by row: role by role, link by link, each in the order of a run."""
    roles, links = plan.topology.roles, [frame.link for frame in places.frames]
    for call, of_call in sides(sorted(places.instants, key=lambda at: roles.index(at.role))).items():
        for kind, at_instant in ON_INSTANTS.items():
            for side in SIDES:
                if side in of_call:
                    yield Cell(call, f"{kind}:{side}", _with(plan, at_instant(of_call[side])))
    for frame in sorted(places.frames, key=lambda place: links.index(place.link)):
        for kind, to_frame in ON_FRAMES.items():
            yield Cell(str(frame), kind, _with(plan, to_frame(frame)))


def _with(plan: Plan, fault: Fault) -> Plan:
    return structs.replace(plan, faults=(*plan.faults, fault))


def colour_of(trial: Trial) -> Colour:
    """What one run of a cell came to."""
    verdict = trial.verdict
    if verdict.exit_code == EXIT_FAILED:
        return "red"
    if verdict.exit_code == EXIT_UNKNOWN:
        return "unknown"
    if verdict.exit_code == EXIT_VACUOUS:
        return "missed"
    told = outcome.endings(trial.history) or outcome.client_was_killed(trial.history)
    return "refused" if told else "served"
