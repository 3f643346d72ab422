"""What a run under a change shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.invariants.listing import Listed, Mutant
from tests.invariants.wire import Message, Ran, Served

SHAKY = "shaky"
"""The outcome of a test that fails once and then no more."""

_LOG_LINES = 12


@dataclass
class Run:
    """All that was heard from one copy of the tree."""

    served: bool | None = None
    why: str = ""
    tests: list[Ran] = field(default_factory=list)
    problem: str = ""
    seconds: float = 0.0

    def note(self, message: Message) -> None:
        """Takes in what was said."""
        if isinstance(message, Served):
            self.served, self.why = message.served, message.why
        elif isinstance(message, Ran):
            self.tests.append(message)
        else:
            self.problem = self.problem or message.problem

    def merge(self, part: Run) -> None:
        """Takes in another run with no change made, of other tests."""
        self.served = part.served if self.served is None else self.served and bool(part.served)
        self.why = self.why or part.why
        self.tests += part.tests
        self.problem = self.problem or part.problem

    def add_log(self, text: str) -> None:
        """Puts the last lines of what was printed behind the problem, if there is one."""
        if self.problem:
            self.problem = "\n".join([self.problem, *text.rstrip().splitlines()[-_LOG_LINES:]])

    def excuse(self, test: str) -> None:
        """The test has failed, and has passed each time when it was tried again: that was not the change's doing."""
        for ran in self.tests:
            if ran.test == test and ran.outcome == "failed":
                ran.outcome = SHAKY

    def shaky(self) -> list[Ran]:
        """The failures that did not come again."""
        return [ran for ran in self.tests if ran.outcome == SHAKY]

    def failed(self) -> dict[str, Ran]:
        """The tests that failed, by id without parameters; each with its first failure."""
        found: dict[str, Ran] = {}
        for ran in self.tests:
            if ran.outcome == "failed":
                found.setdefault(ran.base, ran)
        return found


@dataclass(frozen=True)
class Verdict:
    """The word for a run, and a sentence for each thing that is not as it should be."""

    word: str
    faults: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        return not self.faults


def judge_unchanged(run: Run) -> Verdict:
    """Without a change everything must pass."""
    if (problem := _problem(run)) is not None:
        return problem
    wrong = (ran for ran in run.tests if ran.outcome not in ("passed", SHAKY))
    faults = tuple(f"{ran.test} {ran.outcome}: {ran.why}" for ran in wrong)
    return Verdict("red" if faults else "green", faults)


def judge(mutant: Mutant, run: Run, listed: Sequence[Listed]) -> Verdict:
    """A request must be served, each test that lists the change fail, and of the rest only tests of the same or kin."""
    if (problem := _problem(run)) is not None:
        return problem
    failed = run.failed()
    missed = [node for node in mutant.tests if node not in failed]
    if missed:
        return Verdict("unnoticed", tuple(f"{node} lists this change and did not fail" for node in missed))
    strays = _strays(mutant, listed)
    faults = [
        f"{failed[one.node].test} ({' '.join(one.invariants)}): {failed[one.node].why}"
        for one in listed
        if one.node in strays and one.node in failed
    ]
    return Verdict("strayed" if faults else "noticed", tuple(faults))


def suspects(mutant: Mutant | None, run: Run, listed: Sequence[Listed]) -> list[str]:
    """The tests, with their parameters, that have failed and should not have; without a mutant all that have."""
    must_not = None if mutant is None else _strays(mutant, listed)
    failed = [ran for ran in run.tests if ran.outcome == "failed"]
    return list(dict.fromkeys(ran.test for ran in failed if must_not is None or ran.base in must_not))


def _strays(mutant: Mutant, listed: Sequence[Listed]) -> set[str]:
    """The tests that have nothing to do with the change."""
    allowed = {*mutant.invariants, *mutant.kin}
    return {test.node for test in listed if allowed.isdisjoint(test.invariants)}


def _problem(run: Run) -> Verdict | None:
    if run.problem:
        return Verdict("broken", (run.problem,))
    if run.served is None:
        return Verdict("broken", ("the run ended before a request was tried",))
    if not run.served:
        return Verdict("unhealthy", (f"a healthy request was not served: {run.why}",))
    return None
