"""The score of a hunt: what was run, what fired, what came of it. Kept while it runs, and the record at its end."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from harness.bug import Bug, Sighting
from harness.clock import now, seconds_since
from harness.faults import DRAWN, AtInstant, Fault, OnClient, kind_of
from harness.search.canary import Canary
from harness.trial import Tally, Trial
from harness.verdict import EXIT_BLIND, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_PASSED, EXIT_UNKNOWN, Verdict


class Fired(Struct, frozen=True):
    """One kind of fault over a whole hunt: plans that held it, and how often it was armed, reached and fired."""

    kind: str
    plans: int
    armed: int
    reached: int
    fired: int


class Found(Struct, frozen=True):
    """One distinct failure: its verdict after shrinking, how often the hunt met it, and how it repeats."""

    verdict: Verdict
    met: int
    faults_before: int
    confirmed: Tally
    shrink_runs: int

    @property
    def repeats(self) -> bool:
        """Whether every run of the smallest plan ended the same way."""
        return self.confirmed.words.get(self.verdict.word, 0) == self.confirmed.runs

    @property
    def certain(self) -> bool:
        """Whether it counts: a proof or a broken rule stands by itself, all else has to come back."""
        return self.verdict.exit_code == EXIT_FAILED or (self.repeats and self.verdict.exit_code == EXIT_UNKNOWN)


class HuntResult(Struct, frozen=True):
    """What a hunt did and found. ``seconds`` covers the hunt alone, without canary and shrinking."""

    target: str
    relay: str
    tp: tuple[int, int]
    seed: int
    lanes: int
    plans: int
    seconds: float
    rate: float
    verdicts: dict[str, int]
    vacuous: int
    served: int
    refused: int
    faults: tuple[Fired, ...]
    instants: int
    canary: Canary | None
    found: tuple[Found, ...]
    interrupted: bool = False
    bug: Sighting | None = None

    @property
    def blind(self) -> bool:
        return self.canary is not None and not self.canary.found

    @property
    def exit_code(self) -> int:
        """5 before 130 before 1 before 4 before 0."""
        if self.blind and not self.interrupted:
            return EXIT_BLIND
        if self.interrupted:
            return EXIT_INTERRUPTED
        codes = {found.verdict.exit_code for found in self.found if found.certain}
        return next((code for code in (EXIT_FAILED, EXIT_UNKNOWN) if code in codes), EXIT_PASSED)


class Failure(Struct):
    """The first trial of one distinct failure, and how often it was met."""

    trial: Trial
    met: int = 1


class Score:
    """Counts trials as they end. Failures that share verdict, grade and fingerprint are one.

    ``bug`` is the bug that is seeded in the engine, if there is one.
    """

    def __init__(self, bug: Bug | None = None) -> None:
        self.plans = 0
        self.verdicts: Counter[str] = Counter()
        self.served = 0
        self.refused = 0
        self.failures: dict[tuple[str, str], Failure] = {}
        self._bug = bug
        self._sighting = Sighting.of(bug, ()) if bug is not None else None
        self._began = now()
        self._kinds: dict[str, list[int]] = {kind: [0, 0, 0, 0] for kind in DRAWN}
        self._places: set[str] = set()

    @property
    def seconds(self) -> float:
        return seconds_since(self._began)

    @property
    def rate(self) -> float:
        """Plans per second so far."""
        return self.plans / max(self.seconds, 1e-9)

    def add(self, trial: Trial) -> None:
        """Counts one trial."""
        verdict = trial.verdict
        self.plans += 1
        self.verdicts[verdict.word] += 1
        self.served += verdict.served
        self.refused += verdict.refused
        if self._bug is not None and self._sighting is not None:
            self._sighting = self._sighting.and_then(Sighting.of(self._bug, [verdict]))
        for kind in {kind_of(fault) for fault in trial.plan.faults}:
            self._kinds.setdefault(kind, [0, 0, 0, 0])[0] += 1
        for count in verdict.faults:
            tally = self._kinds[count.kind]
            for index, number in enumerate((count.armed, count.reached, count.fired), start=1):
                tally[index] += number
        for fault, count in zip(trial.plan.faults, verdict.faults, strict=False):
            if count.fired:
                self._places.add(_place(fault))
        if verdict.exit_code in (EXIT_FAILED, EXIT_UNKNOWN):
            key = (verdict.word, verdict.fingerprint)
            if key in self.failures:
                self.failures[key].met += 1
            else:
                self.failures[key] = Failure(trial)

    def result(
        self,
        *,
        target: str,
        relay: str,
        tp: tuple[int, int],
        seed: int,
        lanes: int,
        seconds: float,
        canary: Canary | None,
        found: tuple[Found, ...],
        interrupted: bool,
    ) -> HuntResult:
        """The record of the hunt."""
        return HuntResult(
            target=target,
            relay=relay,
            tp=tp,
            seed=seed,
            lanes=lanes,
            plans=self.plans,
            seconds=round(seconds, 3),
            rate=round(self.plans / max(seconds, 1e-9), 2),
            verdicts=dict(sorted(self.verdicts.items())),
            vacuous=self.verdicts["vacuous"],
            served=self.served,
            refused=self.refused,
            faults=tuple(Fired(kind, *counts) for kind, counts in self._kinds.items()),
            instants=len(self._places),
            canary=canary,
            found=found,
            interrupted=interrupted,
            bug=self._sighting,
        )


def _place(fault: Fault) -> str:
    """Where a fault strikes, without its settings."""
    if isinstance(fault, AtInstant):
        return str(fault.at)
    if isinstance(fault, OnClient):
        return str(fault)
    return f"{fault.link}[{fault.frame}]#{fault.nth} of {fault.victim}"
