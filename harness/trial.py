"""A trial: one run of a plan with its verdict. Everything that runs plans in numbers runs them through here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing

from msgspec import Struct, structs

from harness.history import History
from harness.judge import judge
from harness.plan import Plan
from harness.verdict import Verdict
from harness.world import World


class Trial(Struct, frozen=True):
    """One run of one plan: what happened and what it comes to."""

    plan: Plan
    history: History
    verdict: Verdict

    def named(self, scenario: str, seed: int | None = None) -> Trial:
        """The same with a verdict of that scenario, and of that seed if one is given."""
        seed = self.verdict.seed if seed is None else seed
        return structs.replace(self, verdict=structs.replace(self.verdict, scenario=scenario, seed=seed))


def trials(world: World, plans: Iterable[Plan], *, scenario: str = "", seed: int = 0) -> Generator[Trial]:
    """Runs plans in the lanes of a world and judges each run, in order of completion."""
    # Closed by hand, so that a caller who leaves the loop early has every lane back before the next statement.
    runs = world.run_many(plans)
    try:
        for plan, history in runs:
            yield Trial(plan, history, judge(history, scenario=scenario, seed=seed))
    finally:
        close = getattr(runs, "close", None)
        if close is not None:
            close()


def repeat(world: World, plan: Plan, runs: int, *, scenario: str = "", seed: int = 0) -> Generator[Trial]:
    """Runs one plan ``runs`` times."""
    with closing(trials(world, [plan] * runs, scenario=scenario, seed=seed)) as repeated:
        yield from repeated


class Tally(Struct, frozen=True):
    """How often each verdict came up in several runs of one plan."""

    runs: int
    words: dict[str, int]

    @classmethod
    def of(cls, verdicts: Sequence[Verdict]) -> Tally:
        """Counts verdicts, the most frequent first."""
        words = Counter(verdict.word for verdict in verdicts)
        return cls(len(verdicts), dict(sorted(words.items(), key=lambda item: (-item[1], item[0]))))

    def __str__(self) -> str:
        return ", ".join(f"{word} {count} of {self.runs}" for word, count in self.words.items()) or "nothing was run"
