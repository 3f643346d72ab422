"""Seeded bugs: each shows as its file says, is named, its canary sings, and without it the same plan passes."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

import harness
from harness import bug as bugs
from harness import cli, scenario, trial
from harness.bench import Options
from harness.bench import bugs as bench
from harness.bug import Bug, Sighting
from harness.history import Event, History
from harness.judge import bug_traces, judge
from harness.plan import EngineOptions, Plan, PlanError
from harness.report import tables
from harness.report.terminal import finding
from harness.seam import bug_canary, region, site
from harness.seam.region import Recorder, Region
from harness.seam.site import Seam
from harness.search.canary import RELAY as CANARY_RELAY
from harness.search.hunt import Hunt, HuntOptions
from harness.search.score import HuntResult
from harness.trial import repeat
from harness.verdict import Blame, BugTrace, Edge, Finding, Verdict
from harness.world.real import RealWorld
from tests.harness import synthetic
from tests.harness.fake_world import FakeWorld, broken_of, judge_by, verdict_of, wedge_of
from tests.harness.test_hunt import Silent

TABLE = """
title = "A bug"
report = "somewhere #1"
[engine]
relay = "handshake"
plugins = ["scenarios.bugs.nosuch"]
[engine.config]
relay_high_water = 7
[[faults]]
kind = "kill"
at = "dp0.rank0:start"
[bug]
id = "H99"
rules = ["WEDGE", "ORDER"]
edge = "dp0.rank1 waits for frame 1 on relay"
"""


def made(text: str = TABLE) -> Bug:
    found = scenario.parse(text, "a-bug").bug
    assert found is not None
    return found


# What is shipped


@pytest.mark.parametrize("bug", scenario.bugs(), ids=lambda bug: f"{bug.id}-{bug.name}")
def test_a_bug_shows_as_its_file_says_and_is_named_and_the_same_plan_passes_without_it(
    bug: Bug, world: RealWorld
) -> None:
    (member,) = scenario.resolve(bug.name)[0].members
    (seen,) = repeat(world, member.plan, 1)
    # A machine that stands still excuses an engine that gives up; here the canary says whose doing it was.
    verdict = judge(structs.replace(seen.history, stalled=0.0))
    assert verdict.verdict == member.expected, verdict
    assert bug.is_named_by(verdict), verdict
    assert not member.blame or (verdict.blame is not None and verdict.blame.names(member.blame)), verdict
    (trace,) = verdict.bugs
    assert trace.id == bug.id
    assert trace.reached
    assert trace.triggered
    assert all(count.fired for count in verdict.faults)
    (twin,) = repeat(world, bug.taken_from(member.plan), 1)
    assert twin.verdict.ok, twin.verdict
    assert twin.verdict.bugs == ()


def test_the_shipped_bugs_are_of_all_groups_and_each_has_an_id_and_a_report_of_its_own() -> None:
    shipped = scenario.bugs()
    assert len(shipped) >= 24
    assert {bug.id[0] for bug in shipped} == set(bugs.GROUPS)
    assert len({bug.id for bug in shipped}) == len(shipped)
    assert len({bug.plugin for bug in shipped}) == len(shipped)
    assert all(bug.title and bug.report for bug in shipped)
    assert all(bug.faults <= 1 for bug in shipped)


def test_a_bug_that_is_imported_outside_of_a_run_changes_nothing() -> None:
    assert site.active() is None
    for bug in scenario.bugs():
        importlib.import_module(bug.plugin)
    engine = [module for name, module in sys.modules.items() if name.partition(".")[0] == "engine"]
    assert len(engine) > 20
    assert [name for module in engine for name in _put_there(module)] == []


def _put_there(module: ModuleType) -> Iterator[str]:
    """The attributes of an engine's module and of its classes that bugs have made."""
    owners: list[Any] = [module, *(one for one in vars(module).values() if inspect.isclass(one))]
    for owner in owners:
        for name, value in vars(owner).items():
            function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if str(getattr(function, "__module__", "")).startswith("scenarios."):
                yield f"{module.__name__}:{name}"


def test_the_harness_imports_no_scenario() -> None:
    for file in Path(inspect.getfile(harness)).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.partition(".")[0] == "scenarios" for name in names), file


# The canary


@pytest.fixture
def memory() -> Iterator[int]:
    yield region.create()
    site.deactivate()


def _marks(memory: int) -> list[tuple[str, str]]:
    return [(event.site, event.kind) for event in Region(memory, 0).events() if event.site.startswith("bug.")]


def test_a_canary_notes_each_mark_once_in_a_process_and_nothing_without_a_run(memory: int) -> None:
    bug_canary.reached("H99")
    site.activate(Seam(Recorder(memory, 0, "dp0.rank0"), ()))
    for _ in range(3):
        bug_canary.reached("H99")
        bug_canary.triggered("H99")
    bug_canary.reached("C99")
    assert _marks(memory) == [("bug.reached", "H99"), ("bug.triggered", "H99"), ("bug.reached", "C99")]
    site.deactivate()
    bug_canary.triggered("C99")
    assert len(_marks(memory)) == 3


def test_a_canary_sings_again_in_the_next_run(memory: int) -> None:
    site.activate(Seam(Recorder(memory, 0, "dp0.rank0"), ()))
    bug_canary.reached("H99")
    second = region.create()
    site.activate(Seam(Recorder(second, 0, "dp0.rank0"), ()))
    bug_canary.reached("H99")
    assert _marks(memory) == _marks(second) == [("bug.reached", "H99")]


def test_a_patch_acts_in_a_run_and_there_in_the_role_that_it_names(memory: int) -> None:
    class Owner:
        def word(self) -> str:
            return "right"

        def other(self) -> str:
            return "right"

    @bug_canary.patch(Owner, "word")
    def _outside(self: Owner) -> str:
        return "wrong"

    assert Owner().word() == "right"
    site.activate(Seam(Recorder(memory, 0, "dp0.rank0"), ()))
    bug_canary.patch(Owner, "word")(_outside)
    bug_canary.patch(Owner, "other", role="dp7.rank9")(_outside)
    assert (Owner().word(), Owner().other()) == ("wrong", "right")


def test_a_patch_acts_without_a_run_where_bugs_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Owner:
        def word(self) -> str:
            return "right"

    monkeypatch.setattr(bug_canary, "_wanted", False)
    bug_canary.wanted()
    bug_canary.patch(Owner, "word")(lambda self: "wrong")
    bug_canary.triggered("H99")
    assert Owner().word() == "wrong"


def test_a_verdict_records_which_roles_reached_and_triggered_a_bug() -> None:
    marks = [
        Event(3, "dp0.rank1", 1, "bug.reached", "mark", "H99"),
        Event(4, "dp0.rank0", 1, "bug.reached", "mark", "H99"),
        Event(5, "dp0.rank1", 1, "bug.triggered", "mark", "H99"),
    ]
    assert bug_traces(synthetic.history(marks)) == (BugTrace("H99", ("dp0.rank1", "dp0.rank0"), ("dp0.rank1",)),)
    assert bug_traces(synthetic.history()) == ()


# What is known of a bug


def test_a_bug_is_read_from_the_file_of_its_scenario() -> None:
    bug = made()
    assert (bug.id, bug.name, bug.title, bug.report) == ("H99", "a-bug", "A bug", "somewhere #1")
    assert (bug.faults, bug.plugin, bug.relay) == (1, "scenarios.bugs.nosuch", "handshake")
    assert bug.group == "handshake and relay"
    with_another = scenario.parse(TABLE, "a-bug", [("engine.plugins", "[]")])
    assert with_another.members[0].plan.engine.plugins == ()
    assert with_another.bug == bug


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('id = "H99"', 'id = "Q1"', ["bug.id", "Q1", "H handshake"]),
        ('id = "H99"', 'id = "H0"', ["bug.id", "H0"]),
        ('id = "H99"', "id = 3", ["bug.id", "int"]),
        ('rules = ["WEDGE", "ORDER"]', "rules = []", ["bug.rules", "WEDGE"]),
        ('rules = ["WEDGE", "ORDER"]', 'rules = ["ORDER"]', ["bug.edge", "WEDGE"]),
        ("edge = ", "egde = ", ["bug", "egde"]),
        ('plugins = ["scenarios.bugs.nosuch"]', "plugins = []", ["engine.plugins", "one plugin"]),
        ("[bug]\n", "[[bug]]\n", ["bug", "table"]),
    ],
)
def test_a_wrong_table_is_refused_with_its_field(old: str, new: str, words: list[str]) -> None:
    assert old in TABLE
    with pytest.raises(PlanError, match=r"^a-bug: ") as caught:
        scenario.parse(TABLE.replace(old, new), "a-bug")
    assert all(word in str(caught.value) for word in words)


def test_a_bug_is_put_into_a_plan_and_taken_out_again() -> None:
    bug, plan = made(), Plan(engine=EngineOptions(relay="subscribed"))
    seeded = bug.put_into(plan)
    assert seeded.engine.plugins == ("scenarios.bugs.nosuch",)
    assert seeded.engine.config == {"relay_high_water": 7}
    assert seeded.engine.relay == "subscribed"
    assert bug.put_into(seeded) == seeded
    assert bug.taken_from(seeded).engine.plugins == ()
    own = made(TABLE + 'sound = "pushpull"\n')
    assert own.taken_from(Plan(engine=own.engine)).engine.relay == "pushpull"
    assert own.taken_from(plan).engine.relay == "subscribed"


@pytest.mark.parametrize(
    ("role", "waits_for", "named"),
    [
        ("dp0.rank1", "frame 1 on relay", True),
        ("dp0.rank3", "frame 12 on relay or message 2 on pipe", True),
        ("dp0.rank0", "frame 1 on relay", False),
        ("dp0.rank1", "message 1 on control", False),
    ],
)
def test_a_wedge_names_a_bug_by_its_edge_whichever_frame_and_rank_it_is(role: str, waits_for: str, named: bool) -> None:
    verdict = wedge_with(Edge(role, "relay.recv", waits_for, 1.0, ()))
    assert made().is_named_by(verdict) is named


def wedge_with(edge: Edge) -> Verdict:
    return Verdict(verdict="wedged", plan={}, digest="", target="engine", blame=Blame("", "", (edge,), ()))


def test_a_broken_rule_names_a_bug_if_it_is_one_of_its_own() -> None:
    found = [
        Verdict(verdict="violated", plan={}, digest="", target="engine", findings=(Finding(rule, ""),))
        for rule in ("ORDER", "GOLD")
    ]
    assert [made().is_named_by(verdict) for verdict in found] == [True, False]
    assert not made().is_named_by(Verdict(verdict="passed", plan={}, digest="", target="engine"))


def test_a_sighting_counts_runs() -> None:
    bug, plan = made(), Plan()
    verdicts = [_seen(verdict_of(plan), True, False), _seen(broken_of(plan), True, True), verdict_of(plan)]
    assert Sighting.of(bug, verdicts) == Sighting("H99", "a-bug", 3, 2, 1, 1, 1)
    parts = [Sighting.of(bug, [verdict]) for verdict in verdicts]
    assert parts[0].and_then(parts[1]).and_then(parts[2]) == Sighting.of(bug, verdicts)


def _seen(verdict: Verdict, reached: bool, triggered: bool, bug: str = "H99") -> Verdict:
    trace = BugTrace(bug, ("dp0.rank1",) if reached else (), ("dp0.rank1",) if triggered else ())
    return structs.replace(verdict, bugs=(trace,))


def test_a_bug_is_detected_by_a_certain_failure_in_which_it_did_something() -> None:
    bug = scenario.bug("H3")
    detecting = _seen(broken_of(Plan()), True, True, bug.id)
    assert bug.is_detected_by(detecting)
    assert not bug.is_detected_by(_seen(broken_of(Plan()), True, False, bug.id))
    assert not bug.is_detected_by(_seen(verdict_of(Plan()), True, True, bug.id))
    suspected = structs.replace(wedge_of(Plan()), grade="suspected")
    assert not bug.is_detected_by(_seen(suspected, True, True, bug.id))


# Commands


@pytest.mark.parametrize("line", ["run healthy --bug H88", "hunt --bug H88", "bench bugs --bug H88"])
def test_an_unknown_bug_is_refused_with_the_nearest(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.invoke(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "no bug 'H88'; did you mean H" in err
    assert err.count("\n") == 1


def test_a_bug_is_found_by_its_id_in_any_case_and_by_its_name() -> None:
    for bug in scenario.bugs():
        assert scenario.bug(bug.id.lower()) == scenario.bug(bug.name) == scenario.bug(bug.name.replace("-", "_")) == bug
    with pytest.raises(PlanError, match=r"nowedge list --bugs"):
        scenario.bug("zzz")


def test_the_list_of_bugs_has_each_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["list", "--bugs", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["bugs"]
    assert [one["id"] for one in listed] == [bug.id for bug in scenario.bugs()]
    assert {"name", "title", "report", "rules", "edge", "faults", "relay", "plugin"} <= listed[0].keys()
    assert cli.invoke(["list", "--bugs"]) == 0
    shown = capsys.readouterr().out
    assert all(bug.name in shown for bug in scenario.bugs())


def test_a_scenario_is_run_with_a_bug_and_says_what_was_seen_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["run", "healthy", "--bug", "C4", "--tp", "4", "--json", "--out", str(tmp_path)]
    assert cli.invoke(line) == 1
    built = json.loads(capsys.readouterr().out)
    assert built["plan"]["engine"]["plugins"] == ["scenarios.bugs.order_of_four"]
    (trace,) = built["bugs"]
    assert trace["id"] == "C4"
    assert set(trace["reached"]) == set(trace["triggered"]) == {f"dp0.rank{rank}" for rank in range(4)}
    assert built["bug"] == {
        "id": "C4",
        "name": "order-of-four",
        "runs": 1,
        "reached": 1,
        "triggered": 1,
        "failed": 1,
        "named": 1,
    }


def test_a_bug_of_one_relay_is_run_in_that_relay_unless_another_is_asked_for() -> None:
    (own,) = cli._resolve("healthy", None, None, None, None, None, None, "H1")
    assert {member.plan.engine.relay for member in own.members} == {"handshake"}
    (other,) = cli._resolve("healthy", "subscribed", None, None, None, None, None, "H1")
    assert {member.plan.engine.relay for member in other.members} == {"subscribed"}
    assert all(member.expected is None for member in own.members)
    assert cli._resolve("deaf-ranks", None, None, None, None, None, None, "H1") == scenario.resolve("deaf-ranks")


def test_a_bug_is_not_hunted_in_the_relay_of_the_canary(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--bug", "C1", "--relay", CANARY_RELAY], ["--relay", f"pushpull,{CANARY_RELAY}"]):
        assert cli.invoke(["hunt", *wrong]) == 2
        assert "is the canary's own" in capsys.readouterr().err


def test_what_was_seen_of_a_bug_stands_below_a_finding_and_in_the_table_of_a_hunt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "  bug        H99   reached in dp0.rank1 · triggered in dp0.rank1" in str(
        finding(_seen(broken_of(Plan()), True, True))
    )
    assert "  bug        H99   reached in dp0.rank1\n" in f"{finding(_seen(verdict_of(Plan()), True, False))}\n"
    result, _ = hunted(monkeypatch, tmp_path)
    assert result.bug is not None
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(tables.hunt_table(result))
    shown = console.export_text()
    assert (
        f"H1 deaf-ranks: reached in 20 of 20 runs · triggered in 20 · none of {result.bug.failed} failures names it"
        in shown
    )


def hunted(monkeypatch: pytest.MonkeyPatch, out: Path) -> tuple[HuntResult, list[Plan]]:
    """A hunt for a bug that breaks a rule in every plan with a fault, in no time; and the plans that were run."""

    def breaks(history: History) -> Verdict:
        if history.plan.engine.relay == CANARY_RELAY:
            return wedge_of(history.plan)
        return _seen(broken_of(history.plan) if history.plan.faults else verdict_of(history.plan), True, True, "H1")

    monkeypatch.setattr(trial, "judge", judge_by(breaks))
    world = FakeWorld()
    bug = scenario.bug("H1")
    options = HuntOptions(bug=bug, seconds=None, plans=20, seed=1, lanes=2, out=out)
    return Hunt(world, options, Silent()).run(), world.runs


def test_a_hunt_for_a_bug_has_it_in_every_plan_but_the_canary_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result, runs = hunted(monkeypatch, tmp_path)
    seeded = [plan for plan in runs if plan.engine.plugins]
    assert len(seeded) >= 20
    assert {plan.engine.relay for plan in runs if not plan.engine.plugins} == {CANARY_RELAY}
    assert {(plan.engine.relay, *plan.engine.plugins) for plan in seeded} == {
        ("handshake", "scenarios.bugs.deaf_ranks")
    }
    assert result.relay == "handshake"
    assert result.bug is not None
    assert (result.bug.id, result.bug.runs) == ("H1", 20)
    assert result.found[0].verdict.plan["engine"]["plugins"] == ("scenarios.bugs.deaf_ranks",)


# The benchmark


class OpenWorld(FakeWorld):
    """A fake world that is opened as a real one is."""

    opened = 0

    def __init__(self, lanes: int) -> None:
        super().__init__()
        type(self).opened += 1

    @staticmethod
    def default_lanes() -> int:
        return 2

    def __enter__(self) -> OpenWorld:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def test_a_bug_is_detected_by_a_failure_in_which_it_did_something_and_trials_are_run_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def breaks(history: History) -> Verdict:
        """Every plan with a fault fails; the bug has done something only where the fault is of rank 1."""
        plan = history.plan
        if not plan.engine.plugins or not plan.faults:
            return verdict_of(plan)
        return _seen(broken_of(plan), True, any(fault.victim == "dp0.rank1" for fault in plan.faults), "H3")

    monkeypatch.setattr(trial, "judge", judge_by(breaks))
    monkeypatch.setattr(bench, "RealWorld", OpenWorld)
    OpenWorld.opened = 0
    options = Options(rounds=2, bugs=("H3",), out=tmp_path)
    result = bench.measure(options)
    (row,) = result["bugs"]
    assert (row["bug"], row["detected"], row["named"], row["silent_without"]) == ("H3", 2, 2, True)
    assert row["found"] == ["violated", "violated"]
    assert row["without"] == ["passed", "passed"]
    assert row["others"] > 0
    assert row["plans"] > row["triggered"] == 2
    assert bench.good(result)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(bench.table(result))
    shown = console.export_text()
    assert "H3   2 of 2" in shown
    assert "detected in all 2 trials   1 of 1   1 needed" in shown
    assert "named when detected        1 of 1   1 needed" in shown
    assert OpenWorld.opened == 1
    again = bench.measure(options)
    assert (again["resumed"], again["bugs"]) == (2, [row])
    assert OpenWorld.opened == 1
    more = bench.measure(Options(rounds=3, bugs=("H3",), out=tmp_path))
    assert (more["resumed"], more["bugs"][0]["detected"]) == (2, 3)


def test_a_bug_that_is_never_found_or_not_named_or_loud_without_is_not_good() -> None:
    def row(told: bench.Told) -> dict[str, Any]:
        return bench._row(scenario.bug("H3"), [told])

    never = row(bench.Told(False, False, 60.0, 99, 90, 0, 0))
    assert (never["detected"], never["median_seconds"], never["median_plans"]) == (0, None, None)
    loud = row(bench.Told(True, True, 1.0, 3, 3, 1, 0, "violated", "wedged (proved)"))
    assert not loud["silent_without"]
    fine = {
        "detected_in_all_trials": 22,
        "detected_needed": 22,
        "named": 20,
        "named_needed": 20,
        "silent_without": 24,
        "bugs": [{}] * 24,
    }
    assert bench.good(fine)
    for field, less in (("detected_in_all_trials", 21), ("named", 19), ("silent_without", 23)):
        assert not bench.good({**fine, field: less})
