"""A stateful machine over plans: each rule asks or breaks one thing more, and after each all of it is run and judged.

A step never goes on with the processes of the one before: its plan is run from the start, so that what fails is a plan
that can be kept and replayed, and Hypothesis shrinks the steps to the fewest. Every oracle judges every step, and so
does the demand at the end of the plan: an engine that was asked, broken and healed has to serve.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any, ClassVar

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec import structs

from harness import plan as plans
from harness.faults import Fault
from harness.plan import EngineOptions, Plan, PlanError, Request, Topology, Workload
from harness.report.terminal import finding
from harness.search.drawing import DRAWERS, TICK, Chooser, Situation
from harness.search.passage import of_table
from harness.search.phases import BUDGET
from harness.search.strategies import DELAY_TOTAL
from harness.targets import get
from harness.trial import repeat
from harness.verdict import EXIT_FAILED, Verdict
from harness.world import World

MOST_REQUESTS, MOST_FAULTS = 4, 4

UTILITIES = ("live_requests", "reset_prefix_cache", "step_counters")

AGAIN = 2
"""How often a step that fails is run once more; it fails if any of those runs fails alike, or is noise."""


class StepFailedError(AssertionError):
    """A step whose plan ends with a proved wedge or a broken rule; the message is the finding."""


class PlanMachine(RuleBasedStateMachine):
    """Asks an engine for more and more, and breaks it more and more. Subclasses set ``world`` and what they want.

    ``plan`` is that of the last step, ``steps`` how many there were. Raises StepFailedError from the rule that failed.
    A plan is judged once for each subclass: Hypothesis comes back to the same steps, and has to find them as they were.
    """

    world: ClassVar[World]
    relay: ClassVar[str] = EngineOptions().relay
    target: ClassVar[str] = "engine"
    most_ranks: ClassVar[int] = 3
    kinds: ClassVar[tuple[str, ...]] = tuple(DRAWERS)
    _verdicts: ClassVar[dict[str, Verdict]] = {}

    def __init_subclass__(cls) -> None:
        cls._verdicts = {}

    def __init__(self) -> None:
        super().__init__()
        self.plan = Plan()
        self.steps = 0

    @initialize(ranks=st.integers(1, 3), tokens=st.integers(1, 6))
    def begins(self, ranks: int, tokens: int) -> None:
        """An engine of so many ranks is asked for a first request, and nothing is broken."""
        self._step(
            Plan(
                topology=Topology(tp=min(ranks, self.most_ranks)),
                engine=EngineOptions(relay=self.relay),
                workload=Workload(requests=(Request(prompt=(1, 2, 3), max_tokens=tokens),)),
                budget=BUDGET,
                target=self.target,
            )
        )

    @precondition(lambda self: len(self.plan.workload.requests) < MOST_REQUESTS)
    @rule(tokens=st.integers(1, 6), at=st.sampled_from(("ready", "previous")))
    def asks(self, tokens: int, at: Any) -> None:
        """One request more, at once or when the one before has ended."""
        workload = self.plan.workload
        requests = (*workload.requests, Request(prompt=(7, 8), max_tokens=tokens, at=at))
        self._step(structs.replace(self.plan, workload=structs.replace(workload, requests=requests)))

    @precondition(lambda self: len(self.plan.workload.utilities) < len(UTILITIES))
    @rule(method=st.sampled_from(UTILITIES))
    def calls(self, method: str) -> None:
        """One utility more, when every request is over."""
        workload = self.plan.workload
        utilities = (*workload.utilities, method)
        self._step(structs.replace(self.plan, workload=structs.replace(workload, utilities=utilities)))

    @precondition(lambda self: len(self.plan.faults) < MOST_FAULTS)
    @rule(data=st.data())
    def breaks(self, data: st.DataObject) -> None:
        """One fault more, of any kind, at a place that such a run passes."""
        fault = data.draw(_faults(self.plan, self.kinds), label="fault")
        if fault is not None:
            self._step(structs.replace(self.plan, faults=(*self.plan.faults, fault)))

    def _step(self, plan: Plan) -> None:
        try:
            plans.check(plan)
            get(plan.target).check(plan)
        except PlanError:
            return  # what cannot be said in a plan is no step
        self.plan = plan
        self.steps += 1
        if plan.digest not in self._verdicts:
            self._verdicts[plan.digest] = self._judged(plan)
        verdict = self._verdicts[plan.digest]
        if verdict.exit_code == EXIT_FAILED:
            raise StepFailedError(finding(verdict).plain)
        note(f"step {self.steps}: {verdict.word}, {verdict.served} served, {verdict.refused} refused")

    def _judged(self, plan: Plan) -> Verdict:
        """The verdict of the plan: the first, or, if that failed and does not come back, one of those that passed."""
        (first,) = self._runs(plan, 1)
        if first.exit_code != EXIT_FAILED:
            return first
        others = self._runs(plan, AGAIN)
        alike = [other for other in others if (other.word, other.fingerprint) == (first.word, first.fingerprint)]
        return first if alike else others[0]

    def _runs(self, plan: Plan, count: int) -> list[Verdict]:
        with closing(repeat(self.world, plan, count, scenario="machine")) as runs:
            return [trial.verdict for trial in runs]


@st.composite
def _faults(draw: st.DrawFn, plan: Plan, kinds: tuple[str, ...]) -> Fault | None:
    """One fault more for a plan; None if none of those kinds has a place in it."""
    chooser, requests = Chooser(draw), plan.workload.requests
    passage = of_table(plan.topology.tp, plan.engine.relay, requests[0].max_tokens)
    situation = Situation(chooser, passage, requests, round(DELAY_TOTAL / TICK / MOST_FAULTS))
    usable = [kind for kind in kinds if situation.has(kind)]
    return DRAWERS[chooser.of(usable)](situation) if usable else None
