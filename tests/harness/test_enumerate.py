"""Enumeration: every place that a phase passes, every fault there, and a colour for each that says what it came to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs
from rich.console import Console

from harness import trial
from harness.faults import Kill
from harness.history import Frame, History
from harness.instant import Instant
from harness.plan import Plan, PlanError
from harness.report.heat import heat_object, heat_table
from harness.search import phases
from harness.search.cells import Cell
from harness.search.enumerate import Enumeration, Enumerator, Grid
from harness.search.places import FramePlace, Places, learn
from harness.targets import get
from harness.verdict import Verdict
from harness.world.real import RealWorld
from tests.harness.fake_world import FakeWorld, history_of, judge_by, verdict_of, wedge_of
from tests.harness.synthetic import MS, STARTED, call, history, mark

HANDSHAKE = phases.get("handshake")


def enumerator(
    world: RealWorld, phase: str = "handshake", tp: int = 2, relay: str = "pushpull", plugin: str = ""
) -> Enumerator:
    one = phases.get(phase)
    plan = one.plan(tp, relay)
    if plugin:
        plan = structs.replace(plan, engine=structs.replace(plan.engine, plugins=(plugin,)))
    return Enumerator(world, get("engine"), one, plan)


def some(grid: Grid, *wanted: tuple[str, str]) -> Grid:
    """The grid with those cells alone, by column and row."""
    cells = {(cell.column, cell.row): cell for cell in grid.cells}
    return structs.replace(grid, cells=tuple(cells[one] for one in wanted))


# ---- places ----


def test_a_place_counts_if_each_run_passes_it_and_any_of_them_within_the_phase() -> None:
    def run(late: int, polls: int) -> History:
        events = [*STARTED, call(2, "dp0.rank0", "relay.bind"), call(late, "dp0.rank1", "relay.connect")]
        events += [call(3, "dp0.rank0", "control.poll", n=n) for n in range(1, polls + 1)]
        return history([*events, call(9, "dp0.rank0", "input.close")])

    plain, observed = [run(4, 2), run(7, 1)], [run(8, 3)]
    assert [str(at) for at in learn(HANDSHAKE, plain, observed).instants if at.role != "client"] == [
        "dp0.rank0:relay.bind#1:after",
        "dp0.rank0:control.poll#1:after",
        "dp0.rank1:relay.connect#1:after",
    ]


def test_what_a_receive_will_bring_is_not_known_before_it() -> None:
    events = [
        *STARTED,
        call(2, "dp0.rank1", "relay.recv", "before"),
        call(2, "dp0.rank1", "relay.recv", kind="go"),
        call(3, "dp0.rank1", "relay.recv", "before"),
        call(3, "dp0.rank1", "relay.recv", kind="step"),
    ]
    assert [str(at) for at in learn(HANDSHAKE, [history(events)], [history(events)]).instants] == [
        "dp0.rank1:relay.recv#1:before",
        "dp0.rank1:relay.recv[go]#1:after",
        "dp0.rank1:relay.recv#2:before",
        "dp0.rank1:relay.recv[step]#1:after",
    ]


def test_frames_are_told_apart_by_their_direction() -> None:
    frames = [
        Frame(2 * MS, "relay", "dp0.rank1", direction, 1, "READY", nth=1) for direction in ("to_binder", "to_connector")
    ]
    frames.append(Frame(3 * MS, "relay", "dp0.rank1", "to_connector", 1, "step", nth=0))  # one that a fault has made
    seen = history(STARTED, frames=tuple(frames))
    assert [str(place) for place in learn(HANDSHAKE, [seen], [seen]).frames] == [
        "dp0.rank1 -> relay[READY]#1",
        "dp0.rank1 <- relay[READY]#1",
    ]


def test_a_phase_that_a_run_has_not_come_through_has_no_places() -> None:
    with pytest.raises(ValueError, match="a run of phase handshake has no"):
        learn(HANDSHAKE, [history([mark(1, "startup", "begin")])], [])


def test_every_phase_is_passed_by_the_engine_and_has_places_of_its_own(world: RealWorld) -> None:
    grids = {name: enumerator(world, name, tp=2).learn() for name in phases.PHASES}
    rows = {name: {cell.row for cell in grid.cells} for name, grid in grids.items()}
    assert "dp0.rank1:control.send[join]#1" in rows["handshake"]
    assert "dp0.rank1 <- relay[step]#1" in rows["request"]
    assert "dp0.rank0 <- input[abort]#1" in rows["abort"]
    assert "dp0.rank0 <- input[utility]#1" in rows["utility"]
    assert "dp0.rank0:relay.send[stop]#1" in rows["shutdown"]
    for name, grid in grids.items():
        assert len({cell.plan.digest for cell in grid.cells}) == len(grid.cells), name


def test_one_more_call_in_the_relay_is_one_more_row(world: RealWorld) -> None:
    plain = enumerator(world).learn()
    more = enumerator(world, plugin="tests.harness.one_more_call").learn()
    new = {cell.row for cell in more.cells} - {cell.row for cell in plain.cells}
    assert {f"dp0.rank{rank}:tp.all_reduce#2" for rank in (0, 1)} <= new
    assert len(more.cells) > len(plain.cells)


# ---- cells ----


def test_a_sound_relay_serves_or_refuses_and_a_bad_one_is_red(world: RealWorld, tmp_path: Path) -> None:
    wanted = (("kill:before", "dp0.rank1:relay.connect#1"), ("stop:after", "dp0.rank0:relay.bind#1"))
    sound = enumerator(world, relay="handshake")
    found = sound.run(some(sound.learn(), *wanted, ("drop", "dp0.rank1 <- relay[done]#1")))
    assert [one.colour for one in found.done] == ["refused", "served", "refused"]
    assert (found.settled, found.exit_code) == (3, 0)

    bad = enumerator(world, relay="unsynchronised")
    red = bad.run(some(bad.learn(), ("hold", "dp0.rank1 -> relay[SUBSCRIBE]#1"))).written(tmp_path)
    assert [one.colour for one in red.done] == ["red"]
    assert red.exit_code == 1
    assert [[cell.column for cell in one.cells] for one in red.reds] == [["hold"]]
    assert Path(red.reds[0].trial.verdict.files["replay"]).exists()


def grid_of(*faults: str) -> Grid:
    cells = [
        Cell(
            f"dp0.rank{n}:relay.bind#1",
            "kill:after",
            Plan(faults=(Kill(at=Instant.parse(f"dp0.rank{n}:relay.bind#1")),)),
        )
        for n, _ in enumerate(faults)
    ]
    return Grid(tuple(cells), Places((), (FramePlace("relay", "go", "dp0.rank1", 1, "to_connector"),)), ())


def run_fake(
    monkeypatch: pytest.MonkeyPatch, judged: Callable[[Plan, int], Verdict], cells: int
) -> tuple[Enumeration, FakeWorld]:
    runs: dict[str, int] = {}

    def judge(seen: History) -> Verdict:
        runs[seen.plan.digest] = runs.get(seen.plan.digest, 0) + 1
        return judged(seen.plan, runs[seen.plan.digest])

    monkeypatch.setattr(trial, "judge", judge_by(judge))
    world = FakeWorld()
    grid = grid_of(*"x" * cells)
    return Enumerator(world, get("engine"), HANDSHAKE, HANDSHAKE.plan(2, "pushpull")).run(grid), world


def victim(plan: Plan) -> str:
    return plan.faults[0].victim


def missing(plan: Plan) -> Verdict:
    return structs.replace(verdict_of(plan, fired=0), verdict="vacuous")


def test_what_came_to_nothing_certain_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(plan: Plan, run: int) -> Verdict:
        if victim(plan) == "dp0.rank0":
            return missing(plan)
        return missing(plan) if run == 1 else verdict_of(plan)

    found, world = run_fake(monkeypatch, judged, 2)
    assert [(one.colour, one.runs) for one in found.done] == [("missed", 3), ("served", 2)]
    assert len(world.runs) == 5
    assert (found.settled, found.exit_code) == (1, 3)


def test_a_suspicion_that_does_not_come_back_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(plan: Plan, run: int) -> Verdict:
        suspected = structs.replace(wedge_of(plan), grade="suspected")
        return suspected if victim(plan) == "dp0.rank0" or run == 1 else verdict_of(plan)

    found, _ = run_fake(monkeypatch, judged, 2)
    assert [one.colour for one in found.done] == ["unknown", "served"]
    assert [[cell.row for cell in red.cells] for red in found.reds] == [["dp0.rank0:relay.bind#1"]]
    assert found.exit_code == 4


def test_cells_that_fail_alike_are_one_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def judged(plan: Plan, run: int) -> Verdict:
        return wedge_of(plan, "w2" if victim(plan) == "dp0.rank1" else "w1")

    found, world = run_fake(monkeypatch, judged, 3)
    assert [len(red.cells) for red in found.reds] == [2, 1]
    assert len(world.runs) == 3, "what is proved needs no second run"
    console = Console(width=80)
    with console.capture() as shown:
        console.print(heat_table(found.written(tmp_path)))
    text = shown.get()
    assert "dp0.rank2:relay.bind#1" in text
    assert "X 3 a broken rule or a proved wedge" in text
    assert "3 of 3 cells settled" in text
    assert heat_object(found)["red"] == 3


def test_an_interrupted_enumeration_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(plan: Plan, run: int) -> Verdict:
        if victim(plan) == "dp0.rank1":
            raise KeyboardInterrupt
        return verdict_of(plan)

    found, _ = run_fake(monkeypatch, judged, 3)
    assert found.interrupted
    assert [one.colour for one in found.done] == ["served"]
    assert found.exit_code == 4, "what was not run is not known"


class Scripted(FakeWorld):
    """A world in which every run starts, binds one socket, and is ready."""

    def run(self, plan: Plan) -> History:
        super().run(plan)
        return structs.replace(history([*STARTED, call(2, "dp0.rank0", "relay.bind")]), plan=plan)


def test_a_run_that_fails_although_nothing_was_broken_is_a_failure_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Plan] = []

    def judge(history: History) -> Verdict:
        seen.append(history.plan)
        return wedge_of(history.plan) if len(seen) == 2 else verdict_of(history.plan)

    monkeypatch.setattr(trial, "judge", judge_by(judge))
    one = Enumerator(Scripted(), get("engine"), HANDSHAKE, HANDSHAKE.plan(2, "pushpull"))
    grid = one.learn()
    assert grid.dry.words == {"passed": 7, "wedged (proved)": 1}
    found = one.run(grid)
    assert [(cell.row, cell.column) for red in found.reds for cell in red.cells] == [
        ("any place of handshake", "nothing")
    ]
    assert found.exit_code == 1


def test_a_phase_that_fails_by_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "judge", judge_by(lambda seen: verdict_of(seen.plan)))
    with pytest.raises(PlanError, match="nothing to enumerate"):
        Enumerator(FakeWorld(), get("engine"), HANDSHAKE, HANDSHAKE.plan(2, "pushpull")).learn()
    assert history_of(HANDSHAKE.plan(2, "pushpull")).events == ()
