"""The verdict on one run: what the findings of all oracles come to, and the exit code that says so.

A proved wedge or a violated rule outranks what is merely suspected, which outranks a run that proved nothing because
its fault never fired, which outranks success.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct

from harness.history import Event, FaultCount

Word = Literal["passed", "vacuous", "violated", "wedged", "budget"]
Grade = Literal["proved", "suspected"]

EXIT_PASSED, EXIT_FAILED, EXIT_USAGE, EXIT_VACUOUS, EXIT_UNKNOWN, EXIT_BLIND, EXIT_HARNESS, EXIT_INTERRUPTED = (
    0,
    1,
    2,
    3,
    4,
    5,
    70,
    130,
)


class Finding(Struct, frozen=True):
    """One rule that one history breaks: the oracle's code, one English sentence, and the event that breaks it.

    ``role`` and ``at`` (nanoseconds) are those of the event, ``event`` is its name as instants are written; all are
    empty where what is wrong is that something never happened.
    """

    oracle: str
    sentence: str
    role: str = ""
    at: int = 0
    event: str = ""

    @classmethod
    def of(cls, oracle: str, sentence: str, event: Event) -> Finding:
        """The finding that this event breaks the rule."""
        return cls(oracle, sentence, event.role, event.t, event.name)


class Edge(Struct, frozen=True):
    """One wait of a wedge: who waits, where, for what, for how long, and who could have ended it.

    ``why`` says in a few words why none of them will.
    """

    role: str
    site: str
    waits_for: str
    since_ms: float
    ended_by: tuple[str, ...]
    why: str = ""


class Blame(Struct, frozen=True):
    """Why a wedge is one: the sentence, the event that made it inevitable, every wait, and what is owed to whom."""

    sentence: str
    event: str
    waits: tuple[Edge, ...]
    owed: tuple[str, ...]

    def names(self, edge: str) -> bool:
        """Whether one of the waits reads like ``edge``, such as 'dp0.rank1 waits for frame 1 on relay'."""
        return any(edge in f"{wait.role} waits for {wait.waits_for}" for wait in self.waits)


class Proof(Struct, frozen=True):
    """The certificate: how long after the last progress the proof stood, and every fact that it rests on."""

    after_progress_ms: float
    facts: tuple[str, ...]


class BugTrace(Struct, frozen=True):
    """One seeded bug in one run: the roles that executed its code, and those in which it did something wrong."""

    id: str
    reached: tuple[str, ...]
    triggered: tuple[str, ...]


class Verdict(Struct, frozen=True):
    """What one run came to. ``served`` and ``refused`` count requests that ended with tokens and with a typed error."""

    verdict: Word
    plan: dict[str, Any]
    digest: str
    target: str
    grade: Grade | None = None
    scenario: str = ""
    seed: int = 0
    blame: Blame | None = None
    proof: Proof | None = None
    faults: tuple[FaultCount, ...] = ()
    findings: tuple[Finding, ...] = ()
    bugs: tuple[BugTrace, ...] = ()
    fingerprint: str = ""
    served: int = 0
    refused: int = 0
    seconds: float = 0.0
    files: dict[str, str] = {}
    versions: dict[str, str] = {}

    @property
    def ok(self) -> bool:
        return self.verdict == "passed"

    @property
    def word(self) -> str:
        """The verdict with its grade, as a person reads it: ``wedged (proved)``."""
        return f"{self.verdict} ({self.grade})" if self.grade else self.verdict

    @property
    def exit_code(self) -> int:
        if self.verdict == "violated" or (self.verdict == "wedged" and self.grade == "proved"):
            return EXIT_FAILED
        if self.verdict in ("budget", "wedged"):
            return EXIT_UNKNOWN
        return EXIT_VACUOUS if self.verdict == "vacuous" else EXIT_PASSED


def exit_code(verdicts: Iterable[Verdict]) -> int:
    """One exit code for several runs: see `worst`."""
    return worst(verdict.exit_code for verdict in verdicts)


def worst(of: Iterable[int]) -> int:
    """One exit code for several: 1 before 4 before 3 before 0."""
    codes = set(of)
    return next((code for code in (EXIT_FAILED, EXIT_UNKNOWN, EXIT_VACUOUS) if code in codes), EXIT_PASSED)
