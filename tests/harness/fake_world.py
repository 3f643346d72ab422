"""A world without processes: histories as a test wants them, in no time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from harness import plan as plans
from harness.faults import kind_of
from harness.history import FaultCount, History
from harness.plan import Plan
from harness.verdict import Blame, Edge, Finding, Proof, Verdict

FIRED = 1


class FakeWorld:
    """Runs nothing; `runs` lists the plans in the order in which they were asked for."""

    def __init__(self) -> None:
        self.runs: list[Plan] = []

    def run(self, plan: Plan) -> History:
        self.runs.append(plan)
        return history_of(plan)

    def run_many(self, plans: Iterable[Plan]) -> Iterator[tuple[Plan, History]]:
        for plan in plans:
            yield plan, self.run(plan)


def history_of(plan: Plan, fired: int = FIRED) -> History:
    """A history in which every fault of the plan fired that often."""
    counts = tuple(
        FaultCount(kind_of(fault), str(fault), fault.victim, fault.optional, 1, fired, fired) for fault in plan.faults
    )
    return History(plan=plan, began=0, cleanup=10, ended="done", events=(), processes=(), faults=counts)


def verdict_of(plan: Plan, fired: int = FIRED) -> Verdict:
    """A passing verdict of a plan."""
    return Verdict(
        verdict="passed",
        plan=plans.to_builtins(plan),
        digest=plan.digest,
        target=plan.target,
        faults=history_of(plan, fired).faults,
        served=1,
        seconds=0.31,
    )


def wedge_of(plan: Plan, fingerprint: str = "w1") -> Verdict:
    """A proved wedge of a plan."""
    return Verdict(
        verdict="wedged",
        grade="proved",
        plan=plans.to_builtins(plan),
        digest=plan.digest,
        target=plan.target,
        faults=history_of(plan).faults,
        fingerprint=fingerprint,
        blame=Blame(
            sentence="Rank 0 published request frame 1 before rank 1's subscription was registered, so it was dropped.",
            event="relay.send[step]#1",
            waits=(
                Edge("dp0.rank1", "relay.recv", "frame 1 on relay", 310.0, (), "nothing left can send it"),
                Edge("dp0.rank0", "tp.broadcast", "tp.broadcast #1", 310.0, ("dp0.rank1",)),
            ),
            owed=("request r0 to client",),
        ),
        proof=Proof(after_progress_ms=8.2, facts=("every thread slept in both looks",)),
    )


def broken_of(plan: Plan) -> Verdict:
    """A verdict with a broken rule."""
    return Verdict(
        verdict="violated",
        plan=plans.to_builtins(plan),
        digest=plan.digest,
        target=plan.target,
        findings=(Finding("ORDER", "dp0.rank1 acted on step frame 3 before step frame 2.", "dp0.rank1", 5),),
        fingerprint="ORDER",
    )


Judge = Callable[[History], Verdict]


def judge_by(rule: Judge) -> Callable[..., Verdict]:
    """A stand-in for `harness.judge.judge` that asks ``rule``."""

    def judge(history: History, scenario: str = "", seed: int = 0) -> Verdict:
        from msgspec import structs

        return structs.replace(rule(history), scenario=scenario, seed=seed)

    return judge
