"""Reports say the verdict first, then why, then what to type; plainly, and within 80 columns."""

from __future__ import annotations

import io
from itertools import islice

import msgspec
import pytest
from msgspec import structs
from rich.console import Console, RenderableType

from harness import outcome, trial
from harness.faults import Hold, Kill
from harness.history import Event, History
from harness.instant import Instant
from harness.plan import Plan
from harness.report import json as objects
from harness.report import tables
from harness.report.terminal import finding
from harness.scenario import Member, Scenario, shipped
from harness.search.canary import Canary
from harness.search.draw import draw
from harness.search.score import Found, HuntResult, Score
from harness.search.strategies import plans
from harness.trial import Tally, Trial
from harness.verdict import Verdict
from tests.harness.fake_world import FakeWorld, broken_of, history_of, judge_by, verdict_of, wedge_of

LOST = Plan(faults=(Hold(link="relay", frame="join", victim="dp0.rank1", or_after=0.3),))


def plain(what: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    console.print(what, soft_wrap=True)
    text = console.file.getvalue()  # type: ignore[attr-defined]  # the StringIO above
    assert "\x1b" not in text
    return str(text)


def test_a_wedge_reads_as_verdict_sentence_waits_fault_and_command() -> None:
    verdict = structs.replace(wedge_of(LOST), scenario="first-request-lost", files={"replay": "x/replay.json"})
    text = plain(finding(verdict, "20 of 20"))
    lines = text.splitlines()
    assert lines[0] == "wedged (proved)  first-request-lost  tp=2 relay=pushpull  8 ms after the last progress"
    for piece in (
        "Rank 0 published request frame 1",
        "dp0.rank1  waits for frame 1 on relay",
        "nothing left can send it",
        "dp0.rank0  waits in tp.broadcast #1",
        "needs dp0.rank1",
        "owed       request r0 to client",
        "armed · reached 1 · fired 1",
        "again      nowedge replay x/replay.json      (20 of 20)",
    ):
        assert piece in text
    assert [line for line in lines[1:] if len(line) > 80] == []


def test_a_broken_rule_names_the_oracle_and_a_pass_says_how_many_were_served() -> None:
    assert "ORDER: dp0.rank1 acted on step frame 3" in plain(finding(broken_of(LOST)))
    assert plain(finding(verdict_of(Plan()))).strip() == "passed  tp=2 relay=pushpull  1 request served  0.31 s"


def test_a_vacuous_run_shows_what_did_not_fire() -> None:
    verdict = structs.replace(verdict_of(LOST, fired=0), verdict="vacuous")
    text = plain(finding(verdict))
    assert text.startswith("vacuous")
    assert "reached 0 · fired 0" in text


def test_the_json_of_a_verdict_has_the_documented_fields() -> None:
    built = msgspec.json.decode(objects.encode(objects.verdict_object(wedge_of(LOST))))
    assert built["verdict"] == "wedged"
    assert built["grade"] == "proved"
    assert built["blame"]["waits"][0] == {
        "role": "dp0.rank1",
        "site": "relay.recv",
        "for": "frame 1 on relay",
        "since_ms": 310.0,
        "ended_by": [],
        "why": "nothing left can send it",
    }
    assert built["faults"][0] == {
        "kind": "hold",
        "instant": str(LOST.faults[0]),
        "victim": "dp0.rank1",
        "optional": False,
        "armed": 1,
        "reached": 1,
        "fired": 1,
        "why": "",
    }


def session(
    monkeypatch: pytest.MonkeyPatch, scenarios: list[Scenario], runs: int, verdict: Verdict | None
) -> outcome.Session:
    def judge(history: History) -> Verdict:
        return verdict if verdict is not None else verdict_of(history.plan)

    monkeypatch.setattr(trial, "judge", judge_by(judge))
    done = outcome.Session(scenarios, runs)
    done.run(FakeWorld())
    return done


def test_runs_of_one_plan_end_with_a_tally_and_the_verdicts_own_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario(
        "lost", "t", "r", (), (Member("", LOST, {"pushpull": "wedged"}, "dp0.rank1 waits for frame 1"),)
    )
    done = session(monkeypatch, [scenario], 20, wedge_of(LOST))
    text = plain(tables.outcomes_report(done.outcomes, single=True))
    assert text.startswith("wedged (proved) 20 of 20")
    assert "(20 of 20)" not in text.splitlines()[0]
    assert outcome.code(done.outcomes, single=True, expect=False) == 1
    assert outcome.code(done.outcomes, single=True, expect=True) == 0
    assert objects.outcomes_object(done.outcomes, single=True)["tally"] == {"wedged (proved)": 20}


def test_a_wedge_that_blames_something_else_is_not_what_the_file_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario(
        "lost", "t", "r", (), (Member("", LOST, {"pushpull": "wedged"}, "dp0.rank0 waits for the moon"),)
    )
    done = session(monkeypatch, [scenario], 2, wedge_of(LOST))
    assert outcome.code(done.outcomes, single=True, expect=True) == 1


def test_a_family_lists_each_member_with_its_instant(monkeypatch: pytest.MonkeyPatch) -> None:
    instants = [Instant("dp0.rank0", "relay.send", kind) for kind in ("hello", "done")]
    members = tuple(Member(str(at), Plan(faults=(Kill(at=at),)), {"pushpull": "passed"}) for at in instants)
    done = session(monkeypatch, [Scenario("kills", "t", "r", (), members)], 3, None)
    text = plain(tables.outcomes_report(done.outcomes, single=False))
    for at in instants:
        assert f"{at}" in text
    assert "3 of 3" in text
    assert "2 of 2 plans ended as expected" in text
    assert outcome.code(done.outcomes, single=False, expect=False) == 0


def test_a_group_in_which_one_plan_fails_ends_with_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario("two", "t", "r", (), (Member("a", LOST, {"pushpull": "passed"}), Member("b", LOST, {})))
    done = session(monkeypatch, [scenario], 1, wedge_of(LOST))
    assert len(done.outcomes) == 2
    assert outcome.code(done.outcomes, single=False, expect=False) == 1


def hunted(**changes: object) -> HuntResult:
    score = Score()
    for plan in islice(draw(plans(), 1), 30):
        score.add(Trial(plan, history_of(plan), verdict_of(plan)))
    result = score.result(
        target="engine",
        relay="handshake",
        tp=(1, 4),
        seed=1,
        lanes=4,
        seconds=3.0,
        canary=Canary("unsynchronised", True, 3, 1.0),
        found=(),
        interrupted=False,
    )
    return structs.replace(result, **changes)


def test_a_hunt_ends_with_one_table() -> None:
    result = hunted()
    text = plain(tables.hunt_table(result))
    for piece in ("delay", "kill", "drop", "hold", "30 in 3 s", "10.0/s", "wedge proved after 3 plans", "seed 1"):
        assert piece in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert sum(fired.fired for fired in result.faults) > 0
    assert result.instants > 10
    assert result.exit_code == 0


def test_a_hunt_with_findings_or_without_canary_says_so_by_its_exit_code() -> None:
    found = Found(wedge_of(LOST), 2, 4, Tally(3, {"wedged (proved)": 3}), 40)
    assert hunted(found=(found,)).exit_code == 1
    assert "(3 of 3)" in plain(tables.hunt_table(hunted(found=(structs.replace(found, verdict=filed()),))))
    assert hunted(canary=Canary("unsynchronised", False, 60, 9.0)).exit_code == 5
    assert "blind" in plain(tables.hunt_table(hunted(canary=Canary("unsynchronised", False, 60, 9.0))))
    assert hunted(interrupted=True).exit_code == 130
    suspected = structs.replace(wedge_of(LOST), grade="suspected")
    assert hunted(found=(Found(suspected, 1, 1, Tally(3, {"wedged (suspected)": 3}), 0),)).exit_code == 4
    assert hunted(found=(Found(suspected, 1, 1, Tally(3, {"passed": 3}), 0),)).exit_code == 0


def filed() -> Verdict:
    return structs.replace(wedge_of(LOST), files={"replay": "x/replay.json"})


def test_failures_of_one_kind_are_one() -> None:
    score = Score()
    for fingerprint in ("w1", "w2", "w1"):
        score.add(Trial(LOST, history_of(LOST), wedge_of(LOST, fingerprint)))
    assert [failure.met for failure in score.failures.values()] == [2, 1]


def test_sites_are_listed_by_role_with_an_instant_that_can_be_typed() -> None:
    events = (
        Event(1, "dp0.rank1", 1, "relay.recv", "after", "step", n=1),
        Event(2, "dp0.rank0", 1, "start", "mark", n=1),
        Event(3, "dp0.rank0", 1, "relay.send", "before", "hello", n=1),
        Event(4, "dp0.rank0", 1, "relay.send", "after", "hello", n=1),
        Event(5, "dp0.rank0", 1, "relay.send", "after", "hello", n=2),
        Event(99, "dp0.rank0", 1, "relay.close", "after", n=1),
    )
    counts = tables.sites_of(structs.replace(history_of(Plan()), events=events, cleanup=10))
    assert [(one.role, one.site, one.times) for one in counts] == [
        ("dp0.rank0", "start", 1),
        ("dp0.rank0", "relay.send", 2),
        ("dp0.rank1", "relay.recv", 1),
    ]
    for one in counts:
        assert str(Instant.parse(one.instant)) == one.instant
    assert "relay.send[hello]#1:after" in plain(tables.sites_table(counts))


def test_the_list_names_every_scenario_in_full() -> None:
    text = plain(tables.list_table(shipped()))
    for scenario in shipped():
        assert scenario.name in text
