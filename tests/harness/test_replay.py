"""A replay file brings back the very plan, and what is no replay file is refused with one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from msgspec import structs

from harness import folder, history, replay, trial
from harness.faults import Delay, Drop, Fault
from harness.folder import FolderError
from harness.history import History
from harness.instant import Instant
from harness.plan import Plan
from harness.replay import Replay, ReplayError
from harness.search.smallest import CERTAIN, of_replay
from harness.trial import Trial, repeat
from harness.verdict import Verdict, Word
from tests.harness.fake_world import FakeWorld, history_of, judge_by, verdict_of, wedge_of
from tests.harness.test_plan import any_plan


@settings(max_examples=20)
@given(any_plan())
def test_a_replay_survives_its_file(plan: Plan) -> None:
    one = Replay(plan, "wedged", "w1", "proved", seed=4, scenario="s", versions={"torch": "2"})
    assert replay.parse(replay.dump(one)) == one


def good() -> dict[str, object]:
    built: dict[str, object] = json.loads(replay.dump(Replay(Plan(), "wedged", "w1", "proved")))
    return built


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 9}, "format 9"),
        ({"verdict": "fine"}, "fine"),
        ({"colour": 1}, "colour"),
        ({"plan": {"topolgy": {}}}, "topology"),
        ({"plan": {"topology": {"tp": 5}}}, "topology.tp: 5"),
        ({"plan": 3}, "plan"),
    ],
)
def test_a_changed_file_is_refused_with_the_reason(change: dict[str, object], words: str) -> None:
    with pytest.raises(ReplayError, match=r".") as caught:
        replay.parse(json.dumps({**good(), **change}).encode(), "r.json")
    message = str(caught.value)
    assert message.startswith("r.json")
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize("data", [b"", b"# nowedge\n", b"[]", b"{}", b"\xff\xfe", b'{"format": 1}'])
def test_any_other_file_is_refused(data: bytes) -> None:
    with pytest.raises(ReplayError, match="is not a replay file"):
        replay.parse(data, "README.md")


def test_the_folder_of_a_finding_can_be_replayed_and_judged_again(tmp_path: Path) -> None:
    plan = Plan()
    verdict = structs.replace(wedge_of(plan), scenario="lost")
    trial = Trial(plan, history_of(plan), verdict)
    written = folder.write(tmp_path, trial)
    assert written.files["replay"] == str(tmp_path / f"lost-{plan.digest[:4]}" / "replay.json")
    again = replay.load(Path(written.files["replay"]))
    assert again.same(verdict)
    assert not again.same(structs.replace(verdict, fingerprint="other"))
    assert history.load(Path(written.files["history"]).read_bytes()) == trial.history
    assert "wedged (proved)" in Path(written.files["text"]).read_text()
    world = FakeWorld()
    assert len(list(repeat(world, again.plan, 3))) == 3
    assert world.runs == [plan] * 3


def test_a_folder_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="cannot write to"):
        folder.usable(tmp_path / "file")


def drop_wedges(monkeypatch: pytest.MonkeyPatch) -> FakeWorld:
    def judge(happened: History) -> Verdict:
        drops = any(isinstance(fault, Drop) for fault in happened.plan.faults)
        return wedge_of(happened.plan) if drops else verdict_of(happened.plan)

    monkeypatch.setattr(trial, "judge", judge_by(judge))
    return FakeWorld()


DROP = Drop(link="relay", frame="step", victim="dp0.rank1")


def test_the_plan_of_a_replay_file_is_shrunk_and_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    world = drop_wedges(monkeypatch)
    plan = Plan(faults=(DROP, Delay(Instant.parse("dp0.rank1:start"), 0.1)), seed=3)
    found = of_replay(world, Replay(plan, "wedged", "w1", "proved"), width=2).written(tmp_path)
    assert (found.faults_before, found.confirmed.words) == (2, {"wedged (proved)": CERTAIN})
    assert replay.load(Path(found.verdict.files["replay"])).plan.faults == (DROP,)
    least = of_replay(world, Replay(plan, "wedged", "w1", "proved"), width=2, max_runs=1)
    assert least.shrink_runs <= 1
    assert least.trial.plan.faults == plan.faults


@pytest.mark.parametrize(
    ("faults", "verdict", "words"),
    [
        ((), "wedged", r"does not fail as recorded \(wedged\) any more: passed 10 of 10"),
        ((), "passed", "only what fails"),
    ],
)
def test_what_does_not_fail_is_not_shrunk(
    monkeypatch: pytest.MonkeyPatch, faults: tuple[Fault, ...], verdict: Word, words: str
) -> None:
    with pytest.raises(ReplayError, match=words):
        of_replay(drop_wedges(monkeypatch), Replay(Plan(faults=faults), verdict, ""), width=2)
