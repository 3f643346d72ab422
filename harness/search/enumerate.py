"""Enumeration: every fault of a small set at every place of one phase, each in a run of its own. Nothing is drawn.

A cell is one place and one fault. It is *served* (all that was asked came back as if nothing had been broken),
*refused* (ended with a typed error for which the fault was bad enough), *red* (a rule is broken, or a wedge is proved),
*unknown* (suspected, or out of budget, in each of several runs) or *missed* (the fault did not fire in any of them).
The enumeration is complete when each cell has come to one of the first three.

At depth 2 a second fault follows each cell, in as many runs as are asked for: see `harness.search.pairs`. It need not
fire, since what a first fault makes of a run is not the same each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal

from msgspec import Struct, structs

from harness import folder
from harness.bug import Bug
from harness.clock import now, seconds_since
from harness.faults import Fault
from harness.history import History
from harness.oracles import outcome
from harness.plan import Plan, PlanError, check
from harness.search import pairs
from harness.search.cells import Cell, cells_of, plus
from harness.search.pairs import Pair, Second, Trace
from harness.search.phases import Phase
from harness.search.places import Places, learn
from harness.targets import Target
from harness.trial import Tally, Trial, trials
from harness.verdict import EXIT_FAILED, EXIT_PASSED, EXIT_UNKNOWN, EXIT_VACUOUS, Verdict, worst
from harness.world import World

DRY_RUNS = 4
"""Runs of each kind from which the places of a phase are learnt."""

AGAIN = 2
"""How often a cell that came to nothing certain is run once more."""

PAIRS = 300
"""How many pairs are run if nobody says how many."""

Colour = Literal["served", "refused", "red", "unknown", "missed"]


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


class Pairs(Struct, frozen=True):
    """What pairs of faults came to. ``met``: all that there are; of them lineage has ``pruned`` some.

    ``chosen``: how many were to be run; ``checked``: those of them that are pruned, were run all the same, and fired.
    """

    met: int
    pruned: int
    chosen: int
    done: tuple[Coloured, ...] = ()
    reds: tuple[Red, ...] = ()
    checked: int = 0
    differing: tuple[Coloured, ...] = ()
    """Those of the checked ones that came to something else than their first fault alone."""

    @property
    def colours(self) -> Counter[str]:
        """How many pairs came to what."""
        return Counter(one.colour for one in self.done)

    @property
    def exit_code(self) -> int:
        """1 with a red pair, 4 with one that is unknown or was to be run and was not, else 0."""
        if self.colours["red"]:
            return EXIT_FAILED
        return EXIT_UNKNOWN if self.colours["unknown"] or len(self.done) < self.chosen else EXIT_PASSED


class Enumeration(Struct, frozen=True):
    """What an enumeration came to. ``seconds`` covers the dry runs and the cells, and the ``pairs`` of depth 2."""

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
    pairs: Pairs | None = None

    def written(self, out: Path) -> Enumeration:
        """The same, with a folder of each distinct failure. Raises FolderError."""
        result = structs.replace(self, reds=self._written(out, self.reds))
        if self.pairs is None:
            return result
        return structs.replace(result, pairs=structs.replace(self.pairs, reds=self._written(out, self.pairs.reds)))

    def _written(self, out: Path, reds: Sequence[Red]) -> tuple[Red, ...]:
        found = []
        for red in reds:
            verdict = folder.write(out, red.trial.named(f"enumerate-{self.phase}"))
            found.append(structs.replace(red, trial=structs.replace(red.trial, verdict=verdict)))
        return tuple(found)

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
        """1 with a red cell or dry run, 4 with a cell that is unknown or was not run, 3 with a missed one, else 0.

        Pairs count in the same way, but for those that were missed.
        """
        return worst((self._exit_code, self.pairs.exit_code if self.pairs is not None else EXIT_PASSED))

    @property
    def _exit_code(self) -> int:
        colours = self.colours
        if colours["red"] or any(red.trial.verdict.exit_code == EXIT_FAILED for red in self.reds):
            return EXIT_FAILED
        if colours["unknown"] or len(self.done) < len(self.grid.cells):
            return EXIT_UNKNOWN
        return EXIT_VACUOUS if colours["missed"] else EXIT_PASSED


class Sheet:
    """What the cells of one depth have come to so far, and what has failed."""

    def __init__(self) -> None:
        self.done: dict[str, Coloured] = {}
        self._failures: dict[tuple[str, str], list[Trial]] = {}

    def note(self, trial: Trial) -> None:
        """Keeps a run if it has failed."""
        verdict = trial.verdict
        if verdict.exit_code in (EXIT_FAILED, EXIT_UNKNOWN):
            self._failures.setdefault((verdict.word, verdict.fingerprint), []).append(trial)

    def colour(self, cell: Cell, trial: Trial) -> Colour:
        """Enters one more run of a cell, and returns what it came to."""
        before = self.done.get(trial.plan.digest)
        colour = colour_of(trial)
        self.done[trial.plan.digest] = Coloured(cell, colour, 1 + (before.runs if before else 0), trial.verdict)
        self.note(trial)
        return colour

    def of(self, cells: Sequence[Cell]) -> tuple[Coloured, ...]:
        """What these cells have come to, as far as they were run."""
        return tuple(self.done[cell.plan.digest] for cell in cells if cell.plan.digest in self.done)

    def reds(self, bare: Cell) -> tuple[Red, ...]:
        """Distinct failures, those with the most cells first; one that came to something else again is left out.

        ``bare`` stands for a run that is of no cell.
        """
        found = []
        for failed in self._failures.values():
            stayed = [trial for trial in failed if self._stays(trial)]
            digests = dict.fromkeys(trial.plan.digest for trial in stayed)
            if stayed:
                cells = tuple(self.done[digest].cell if digest in self.done else bare for digest in digests)
                found.append(Red(stayed[0], cells, Tally.of([trial.verdict for trial in stayed])))
        return tuple(sorted(found, key=lambda red: -len(red.cells)))

    def _stays(self, trial: Trial) -> bool:
        """Whether a failed run still counts: its cell has come to nothing better since, or it is of no cell."""
        cell = self.done.get(trial.plan.digest)
        return cell is None or cell.colour not in ("served", "refused")


Watch = Callable[[int, int], None]
"""Told how many cells of how many are settled."""


class Enumerator:
    """Enumerates one phase in a world. ``bug`` is seeded in the engine of every plan.

    For ``depth`` 2 every link of every run is observed, so that each cell shows the frames that come after its fault.
    """

    def __init__(
        self,
        world: World,
        target: Target,
        phase: Phase,
        plan: Plan,
        *,
        bug: Bug | None = None,
        depth: int = 1,
        watch: Watch = lambda done, cells: None,
    ) -> None:
        self._world = world
        self._target = target
        self._phase = phase
        self._plan = plan if bug is None else bug.put_into(plan)
        self._observed = structs.replace(self._plan, observe=target.links(self._plan))
        self._base = self._observed if depth == 2 else self._plan
        self._depth = depth
        self._watch = watch
        self._began = now()
        self._runs = 0
        self._sheet = Sheet()
        self._known: set[Trace] = set()
        self._follows: dict[str, tuple[Cell, tuple[Second, ...]]] = {}
        self._sound: dict[Fault, bool] = {}

    def learn(self) -> Grid:
        """Runs the phase with nothing broken, and makes the cells from the runs that came through.

        Raises PlanError if none did. One that failed by itself is a failure like that of a cell.
        """
        through: dict[str, list[History]] = {self._plan.digest: [], self._observed.digest: []}
        verdicts = []
        with closing(trials(self._world, [self._plan, self._observed] * DRY_RUNS)) as runs:
            for trial in runs:
                self._runs += 1
                verdicts.append(trial.verdict)
                self._sheet.note(trial)
                if self._phase.is_passed_by(trial.history):
                    through[trial.plan.digest].append(trial.history)
                    self._known |= pairs.traces(trial.history)
        plain, watched = through[self._plan.digest], through[self._observed.digest]
        if not plain or not watched:
            words = Tally.of(verdicts)
            raise PlanError(f"phase {self._phase.name}: with nothing broken {words}, so there is nothing to enumerate")
        return structs.replace(self._grid(learn(self._phase, plain, watched)), dry=Tally.of(verdicts))

    def _grid(self, places: Places) -> Grid:
        cells, impossible = [], []
        for cell in cells_of(self._base, places):
            if self._is_sound(cell.fault):
                cells.append(cell)
            else:
                impossible.append(cell.name)
        return Grid(tuple(cells), places, tuple(impossible))

    def _is_sound(self, fault: Fault) -> bool:
        """Whether a plan can have that fault; faults are checked one by one, so that two that are sound go together."""
        if fault not in self._sound:
            plan = plus(self._base, fault)
            try:
                check(plan)
                self._target.check(plan)
            except PlanError:
                self._sound[fault] = False
            else:
                self._sound[fault] = True
        return self._sound[fault]

    def run(self, grid: Grid) -> Enumeration:
        """Runs every cell, and again what came to nothing certain; ends early, with what is done, on Ctrl-C."""
        sheet = self._sheet
        interrupted = self._rounds(sheet, grid.cells, self._watch, lambda one: not one.settled)
        return Enumeration(
            phase=self._phase.name,
            target=self._plan.target,
            relay=self._plan.engine.relay,
            tp=self._plan.topology.tp,
            grid=grid,
            done=sheet.of(grid.cells),
            reds=sheet.reds(self._bare),
            runs=self._runs,
            seconds=round(seconds_since(self._began), 3),
            interrupted=interrupted,
        )

    def pairs(self) -> tuple[Pair, ...]:
        """Every pair that the cells run so far have shown, at depth 2, in the order in which they are worth a run."""
        return pairs.ordered(self._follows.values())

    def follow(
        self,
        found: Enumeration,
        met: Sequence[Pair],
        *,
        limit: int = PAIRS,
        unpruned: bool = False,
        watch: Watch = lambda done, pairs: None,
    ) -> Enumeration:
        """Runs the first ``limit`` pairs, and again what is unknown; pruned ones only if ``unpruned``.

        Ends early, with what is done, on Ctrl-C.
        """
        chosen = [pair for pair in met if unpruned or not pair.pruned][:limit]
        sheet = Sheet()
        interrupted = self._rounds(sheet, chosen, watch, lambda one: one.colour == "unknown")
        done = sheet.of(chosen)
        alone = {one.cell.plan.digest: one.colour for one in found.done}
        checked = [(one, pair) for one in done if (pair := _pruned(one)) is not None]
        result = Pairs(
            met=len(met),
            pruned=sum(pair.pruned for pair in met),
            chosen=len(chosen),
            done=done,
            reds=sheet.reds(self._bare),
            checked=len(checked),
            differing=tuple(one for one, pair in checked if one.colour != alone.get(pair.first.plan.digest)),
        )
        return structs.replace(
            found,
            pairs=result,
            runs=self._runs,
            seconds=round(seconds_since(self._began), 3),
            interrupted=interrupted,
        )

    @property
    def _bare(self) -> Cell:
        return Cell(f"any place of {self._phase.name}", "nothing", self._plan)

    def _rounds(self, sheet: Sheet, cells: Sequence[Cell], watch: Watch, is_open: Callable[[Coloured], bool]) -> bool:
        """Runs cells, and again those that are still open; whether Ctrl-C has ended it early."""
        left = {cell.plan.digest: cell for cell in cells}
        try:
            for _ in range(1 + AGAIN):
                self._pass(sheet, left, len(cells), watch)
                left = {digest: one.cell for digest, one in sheet.done.items() if is_open(one)}
        except KeyboardInterrupt:
            return True
        return False

    def _pass(self, sheet: Sheet, cells: Mapping[str, Cell], total: int, watch: Watch) -> None:
        with closing(trials(self._world, [cell.plan for cell in cells.values()])) as runs:
            for trial in runs:
                self._runs += 1
                cell = cells[trial.plan.digest]
                colour = sheet.colour(cell, trial)
                if sheet is self._sheet and self._depth == 2 and colour in ("served", "refused"):
                    self._learn_second(cell, trial.history)
                watch(sum(one.settled for one in sheet.done.values()), total)

    def _learn_second(self, cell: Cell, history: History) -> None:
        """Keeps what can follow a cell, from its first run that came to something certain."""
        if cell.plan.digest in self._follows:
            return
        found = pairs.seconds(history, len(self._base.faults), self._phase, self._target, frozenset(self._known))
        self._follows[cell.plan.digest] = cell, tuple(second for second in found if self._is_sound(second.fault))


def _pruned(one: Coloured) -> Pair | None:
    """Its pair, if lineage has pruned it and it fired: a second fault that did not fire has changed nothing."""
    fired = one.colour != "missed" and all(count.fired for count in one.verdict.faults)
    return one.cell if fired and isinstance(one.cell, Pair) and one.cell.pruned else None


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
