"""Outcomes: what several runs of the plans of scenario files came to, beside what the files say."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from msgspec import Struct, structs

from harness import folder
from harness.bug import Bug, Sighting
from harness.plan import Plan
from harness.scenario import Member, Scenario
from harness.trial import Tally, Trial, trials
from harness.verdict import EXIT_FAILED, EXIT_PASSED, Verdict, Word, exit_code
from harness.world import World


class Outcome(Struct):
    """All runs of one plan. ``shown`` is the first trial that did not pass, or the first of all.

    ``more`` are the others that are worth keeping: those that did not pass, or all if that was asked for. ``bug`` is
    the bug that is seeded in the engine, if there is one.
    """

    scenario: str
    member: Member
    verdicts: list[Verdict]
    shown: Trial
    bug: Bug | None = None
    more: list[Trial] = []

    @property
    def tally(self) -> Tally:
        return Tally.of(self.verdicts)

    @property
    def expected(self) -> Word | None:
        return self.member.expected

    @property
    def as_expected(self) -> bool:
        """Whether every run ended as the file says; where it says nothing, whether every run passed."""
        if self.expected is None:
            return all(verdict.ok for verdict in self.verdicts)
        return all(verdict.verdict == self.expected and self._blames(verdict) for verdict in self.verdicts)

    @property
    def sighting(self) -> Sighting | None:
        """What the runs saw of the bug."""
        return Sighting.of(self.bug, self.verdicts) if self.bug is not None else None

    @property
    def fired(self) -> int:
        """In how many runs every fault that the plan requires has fired."""
        return sum(all(count.fired or count.optional for count in verdict.faults) for verdict in self.verdicts)

    def _blames(self, verdict: Verdict) -> bool:
        if verdict.verdict != "wedged" or not self.member.blame:
            return True
        return verdict.blame is not None and verdict.blame.names(self.member.blame)


class Session:
    """Runs every member of some scenarios ``runs`` times, in the lanes of one world.

    With ``everything`` the runs that passed are worth keeping too.
    """

    def __init__(self, scenarios: Sequence[Scenario], runs: int, *, everything: bool = False) -> None:
        self._everything = everything
        self._places = [(scenario, member) for scenario in scenarios for member in scenario.members]
        self._outcomes: dict[int, Outcome] = {}
        self._runs = runs
        self.total = runs * len(self._places)
        self.done = 0

    def run(self, world: World, watch: Callable[[], None] = lambda: None) -> None:
        """Runs all; after each run ``watch`` is called. What is done stays in `outcomes` if it is interrupted."""
        # Two members may be the same plan (an override can make them so): each run then goes to the next that waits.
        waiting: dict[str, deque[int]] = {}
        for index, (_, member) in enumerate(self._places):
            waiting.setdefault(member.plan.digest, deque()).extend([index] * self._runs)
        with closing(trials(world, self._plans())) as ended:
            for trial in ended:
                self._add(waiting[trial.plan.digest].popleft(), trial)
                watch()

    def _plans(self) -> Iterator[Plan]:
        for _, member in self._places:
            for _ in range(self._runs):
                yield member.plan

    def _add(self, index: int, trial: Trial) -> None:
        scenario, member = self._places[index]
        trial = trial.named(scenario.name, trial.plan.seed)
        self.done += 1
        outcome = self._outcomes.get(index)
        if outcome is None:
            self._outcomes[index] = Outcome(scenario.name, member, [trial.verdict], trial, scenario.bug)
            return
        outcome.verdicts.append(trial.verdict)
        if outcome.shown.verdict.ok and not trial.verdict.ok:
            outcome.shown, trial = trial, outcome.shown
        if self._everything or not trial.verdict.ok:
            outcome.more.append(trial)

    @property
    def outcomes(self) -> list[Outcome]:
        """What has been run so far, in the order of the files."""
        return [self._outcomes[index] for index in sorted(self._outcomes)]

    @property
    def single(self) -> bool:
        """Whether there is only one plan."""
        return len(self._places) == 1


def keep(outcomes: Sequence[Outcome], out: Path, *, everything: bool = False) -> None:
    """Writes the folder of each outcome that did not pass, or of each, and notes the files in its verdict.

    Every run that is worth keeping has its history there. Raises FolderError.
    """
    for outcome in outcomes:
        if everything or not outcome.shown.verdict.ok:
            verdict = folder.write(out, outcome.shown, outcome.more)
            outcome.shown = structs.replace(outcome.shown, verdict=verdict)


def code(outcomes: Sequence[Outcome], *, single: bool, expect: bool) -> int:
    """The exit code: the verdict's own for one plan; for several, or with ``expect``, 0 if each ended as its file says.

    A plan that ended otherwise counts with its own verdict, and with 1 if it passed where the file expects otherwise.
    """
    if single and not expect:
        return exit_code(verdict for outcome in outcomes for verdict in outcome.verdicts)
    wrong = [outcome for outcome in outcomes if not outcome.as_expected]
    if not wrong:
        return EXIT_PASSED
    return exit_code(verdict for outcome in wrong for verdict in outcome.verdicts) or EXIT_FAILED
