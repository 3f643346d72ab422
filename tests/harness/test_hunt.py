"""A hunt trusts itself only after its canary, counts a failure once, shrinks it, and keeps what it has when stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest

from harness import replay, trial
from harness.faults import DRAWN, Drop
from harness.history import History
from harness.plan import Plan
from harness.search.canary import MAX_PLANS, Canary
from harness.search.guide import Guide
from harness.search.hunt import Hunt, HuntOptions
from harness.search.score import HuntResult, Score
from harness.trial import Trial
from harness.verdict import Verdict
from tests.harness.fake_world import FakeWorld, judge_by, verdict_of, wedge_of


class Silent:
    """A watcher that interrupts the hunt after some plans, if it is told to."""

    def __init__(self, stop_after: int = 0) -> None:
        self.stop_after = stop_after
        self.confirmed = 0

    def canary(self, plans: int, result: Canary | None) -> None:
        pass

    def hunting(self, score: Score) -> None:
        if score.plans == self.stop_after:
            raise KeyboardInterrupt

    def confirming(self, trial: Trial, met: int) -> None:
        self.confirmed += 1


def unsynchronised(plan: Plan) -> bool:
    return plan.engine.relay == "unsynchronised"


def drops(plan: Plan) -> bool:
    return any(isinstance(fault, Drop) for fault in plan.faults)


def hunt(
    monkeypatch: pytest.MonkeyPatch,
    out: Path,
    wedges: Callable[[Plan], bool],
    stop_after: int = 0,
    relay: str = "",
    *,
    examples: bool = False,
    count: int = 60,
    guided: bool = False,
) -> tuple[HuntResult, FakeWorld]:
    def judge(history: History) -> Verdict:
        return wedge_of(history.plan) if wedges(history.plan) else verdict_of(history.plan)

    monkeypatch.setattr(trial, "judge", judge_by(judge))
    world = FakeWorld()
    kept = out / "examples" if examples else None
    options = HuntOptions(
        relay=relay, seconds=None, plans=count, seed=1, lanes=2, out=out, examples=kept, guided=guided
    )
    return Hunt(world, options, Silent(stop_after)).run(), world


def test_a_sound_engine_is_hunted_with_every_kind_of_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result, _ = hunt(monkeypatch, tmp_path, unsynchronised)
    assert (result.exit_code, result.plans, result.found) == (0, 60, ())
    assert {fired.kind for fired in result.faults if fired.fired} == set(DRAWN)
    assert result.canary is not None
    assert result.canary.found
    assert list(tmp_path.iterdir()) == []


def test_a_hunt_whose_canary_lives_is_blind_and_hunts_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result, world = hunt(monkeypatch, tmp_path, lambda plan: False)
    assert result.exit_code == 5
    assert len(world.runs) == MAX_PLANS
    assert all(unsynchronised(plan) for plan in world.runs)


def test_one_failure_met_often_is_found_once_shrunk_and_can_be_replayed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result, _ = hunt(monkeypatch, tmp_path, lambda plan: unsynchronised(plan) or drops(plan))
    assert result.exit_code == 1
    (found,) = result.found
    assert found.met > 1
    assert found.repeats
    recorded = replay.load(Path(found.verdict.files["replay"]))
    assert recorded.word == "wedged (proved)"
    assert len(recorded.plan.faults) == 1
    assert drops(recorded.plan)
    assert recorded.plan.topology.tp == 2


def test_hunting_the_relay_of_the_canary_reports_what_the_canary_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result, _ = hunt(monkeypatch, tmp_path, unsynchronised, relay="unsynchronised")
    assert result.exit_code == 1
    assert len(result.found) == 1
    assert len(list(tmp_path.glob("hunt-*/replay.json"))) == 1


def test_a_hunt_that_is_stopped_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result, _ = hunt(monkeypatch, tmp_path, lambda plan: unsynchronised(plan) or drops(plan), stop_after=40)
    assert result.exit_code == 130
    assert result.plans == 40
    assert len(result.found) == 1
    assert result.found[0].confirmed.runs == 0
    assert len(list(tmp_path.glob("hunt-*/replay.json"))) == 1


def test_of_several_relays_each_is_covered_and_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result, world = hunt(monkeypatch, tmp_path, unsynchronised, relay="handshake,subscribed", count=160)
    assert (result.exit_code, result.relay) == (0, "handshake,subscribed")
    hunted = [plan.engine.relay for plan in world.runs if not unsynchronised(plan)]
    assert set(hunted) == set(hunted[-40:]) == {"handshake", "subscribed"}


@pytest.mark.parametrize("guided", [False, True])
def test_only_a_guided_hunt_has_climbs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, guided: bool) -> None:
    climbs = []

    class Counted(Guide):
        def __enter__(self) -> Self:
            climbs.append(len(self._threads))
            return super().__enter__()

    monkeypatch.setattr("harness.search.hunt.Guide", Counted)
    result, _ = hunt(monkeypatch, tmp_path, unsynchronised, guided=guided)
    assert (result.exit_code, result.plans) == (0, 60)
    assert climbs == [result.lanes if guided else 0]


def test_the_same_seed_hunts_the_same_plans(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, one = hunt(monkeypatch, tmp_path, unsynchronised)
    _, other = hunt(monkeypatch, tmp_path, unsynchronised)
    assert [plan.digest for plan in one.runs] == [plan.digest for plan in other.runs]
