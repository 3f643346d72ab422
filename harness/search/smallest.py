"""The smallest plan of a failure that can be relied on: shrunk, then confirmed by some runs more.

A shrunk plan that fails only mostly helps nobody, so the smallest is the one that fails the same way every time; if
shrinking went a step too far, the plan before it is taken.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from harness import folder
from harness.replay import Replay, ReplayError
from harness.search.score import Found
from harness.shrink import MAX_RUNS, Shrinker
from harness.targets import get
from harness.trial import Tally, Trial, repeat
from harness.verdict import EXIT_FAILED, EXIT_UNKNOWN, Verdict
from harness.world import World

CERTAIN = 10
"""Runs in which the smallest plan has to fail the same way; if it does not, the one before it is tried."""

MAX_STEPS_BACK = 3


class Smallest(Struct, frozen=True):
    """A trial of the smallest plan, what `CERTAIN` runs of it came to, and the runs that shrinking took.

    ``shrink_runs`` is 0 where nothing could be shrunk, since the failure did not come back often enough.
    """

    trial: Trial
    faults_before: int
    confirmed: Tally
    shrink_runs: int

    def written(self, out: Path, *, met: int = 1) -> Found:
        """Writes the folder of the failure, which ``met`` plans have met. Raises FolderError."""
        verdict = folder.write(out, self.trial)
        return Found(verdict, met, self.faults_before, self.confirmed, self.shrink_runs)


def smallest(world: World, first: Trial, *, width: int, scenario: str, seed: int, max_runs: int = MAX_RUNS) -> Smallest:
    """Shrinks the plan of a failed trial, ``width`` reductions at a time, in at most ``max_runs`` runs."""

    def alike(verdict: Verdict) -> bool:
        return (verdict.word, verdict.fingerprint) == (first.verdict.word, first.verdict.fingerprint)

    shrinker = Shrinker(world, alike, width=width, max_runs=max_runs, allowed=get(first.plan.target).check)
    shrunk = shrinker.shrink(first.plan)
    best, again = first, list[Trial]()
    for plan in (*reversed(shrunk.kept[-MAX_STEPS_BACK:]), first.plan):
        again = list(repeat(world, plan, CERTAIN, scenario=scenario, seed=seed))
        if all(alike(trial.verdict) for trial in again):
            best = again[0]
            break
    return Smallest(
        trial=best.named(scenario, seed),
        faults_before=len(first.plan.faults),
        confirmed=Tally.of([trial.verdict for trial in again]),
        shrink_runs=shrunk.runs if shrunk.kept else 0,
    )


def of_replay(world: World, recorded: Replay, *, width: int, max_runs: int = MAX_RUNS) -> Smallest:
    """Shrinks the plan of a replay file. Raises ReplayError if none of a few runs fails as it records."""
    tried = list(repeat(world, recorded.plan, CERTAIN, scenario=recorded.scenario, seed=recorded.seed))
    first = next((trial for trial in tried if recorded.same(trial.verdict)), None)
    if first is None:
        tally = Tally.of([trial.verdict for trial in tried])
        raise ReplayError(f"the plan does not fail as recorded ({recorded.word}) any more: {tally}")
    if first.verdict.exit_code not in (EXIT_FAILED, EXIT_UNKNOWN):
        raise ReplayError(f"the plan of the file {recorded.word}; only what fails can be shrunk")
    return smallest(
        world, first, width=width, scenario=recorded.scenario or "shrunk", seed=recorded.seed, max_runs=max_runs
    )
