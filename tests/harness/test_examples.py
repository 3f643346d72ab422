"""Examples: a hunt begins with what failed in the one before, until it passes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis.database import DirectoryBasedExampleDatabase, InMemoryExampleDatabase
from msgspec import structs

from harness.faults import Kill
from harness.instant import Instant
from harness.plan import Plan, Topology, to_json
from harness.search.examples import MOST, Examples
from harness.trial import Trial
from harness.verdict import Verdict
from tests.harness.fake_world import history_of, verdict_of, wedge_of
from tests.harness.test_hunt import drops, hunt, unsynchronised


def trial(plan: Plan, verdict: Verdict) -> Trial:
    return Trial(plan, history_of(plan), verdict)


def test_what_fails_is_kept_until_it_passes(tmp_path: Path) -> None:
    plan, other = Plan(), Plan(topology=Topology(tp=3))
    Examples(DirectoryBasedExampleDatabase(tmp_path), "engine", "pushpull").tell(trial(plan, wedge_of(plan)))
    examples = Examples(DirectoryBasedExampleDatabase(tmp_path), "engine", "pushpull")
    examples.tell(trial(other, verdict_of(other)))
    assert list(examples.plans()) == [plan]
    assert list(Examples(DirectoryBasedExampleDatabase(tmp_path), "engine", "handshake").plans()) == []
    examples.tell(trial(plan, structs.replace(verdict_of(plan), verdict="vacuous")))
    assert list(examples.plans()) == [plan], "a plan that proved nothing may still fail"
    examples.tell(trial(plan, verdict_of(plan)))
    assert list(examples.plans()) == []


def test_what_cannot_be_run_any_more_is_taken_out() -> None:
    database = InMemoryExampleDatabase()
    key = b"nowedge/engine"
    gone = Plan(faults=(Kill(Instant("dp0.rank0", "no.site")),))
    for raw in (b"\xff", b'{"topology": {"ranks": 2}}', to_json(gone), to_json(Plan())):
        database.save(key, raw)
    assert list(Examples(database, "engine").plans()) == [Plan()]
    assert set(database.fetch(key)) == {to_json(Plan())}


def test_a_few_are_enough_and_none_without_a_database() -> None:
    database = InMemoryExampleDatabase()
    for seed in range(MOST + 5):
        database.save(b"nowedge/engine", to_json(Plan(seed=seed)))
    assert len(list(Examples(database, "engine").plans())) == MOST
    nothing = Examples(None, "engine")
    nothing.tell(trial(Plan(), wedge_of(Plan())))
    assert list(nothing.plans()) == []


def test_a_folder_that_cannot_be_written_costs_no_hunt(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    Examples(DirectoryBasedExampleDatabase(tmp_path / "file"), "x").tell(trial(Plan(), wedge_of(Plan())))


def test_a_hunt_begins_with_what_failed_in_the_one_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result, _ = hunt(monkeypatch, tmp_path, lambda plan: unsynchronised(plan) or drops(plan), examples=True)
    assert result.exit_code == 1
    result, world = hunt(monkeypatch, tmp_path, unsynchronised, examples=True)
    assert result.exit_code == 0
    hunted = [plan for plan in world.runs if not unsynchronised(plan)]
    assert drops(hunted[0])
    result, world = hunt(monkeypatch, tmp_path, unsynchronised, examples=True)
    hunted = [plan for plan in world.runs if not unsynchronised(plan)]
    assert hunted[0].faults == ()
