"""Pairs of faults: what can come second, in which order, and that lineage prunes nothing that matters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

from harness import trial
from harness.faults import Drop, Fault, Kill, Stop, kind_of
from harness.history import Event, Frame, History
from harness.instant import Instant
from harness.plan import Plan
from harness.report.heat import MARKS, heat_object, heat_table
from harness.search import pairs, phases
from harness.search.cells import Cell, cells_of
from harness.search.enumerate import Colour, Coloured, Enumeration, Enumerator, Grid, Pairs
from harness.search.pairs import Pair, Second
from harness.search.places import Places
from harness.targets import get
from harness.verdict import Verdict
from harness.world.real import RealWorld
from tests.harness.fake_world import FakeWorld, judge_by, verdict_of, wedge_of
from tests.harness.synthetic import MS, STARTED, call, history, mark

HANDSHAKE = phases.get("handshake")
BASE = HANDSHAKE.plan(2, "pushpull")
TARGET = get("engine")
FIRST = Kill(at=Instant.parse("dp0.rank1:relay.connect#1:before"))
STRUCK = Event(20 * MS, "dp0.rank1", 1, "fault.fired", "mark", number=0)
TOLD = mark(90, "startup", "failed", ok=False, text="StartupError|dp0.rank1|killed by SIGKILL")


def seconds(events: Sequence[Event], frames: Sequence[Frame] = (), **kwargs: Any) -> list[str]:
    """What can come second in a run whose first fault has fired at 20 ms: the kill or the drop at each place."""
    seen = history([STRUCK, *events], faults=[FIRST], fired=[1], frames=frames)
    found = pairs.seconds(seen, 0, HANDSHAKE, TARGET, **kwargs)
    return [str(one.fault) + " -" * one.pruned for one in found if one.kind in ("kill", "drop")]


# ---- what can come second ----


def test_second_is_what_the_run_passed_after_the_first_fault_had_fired() -> None:
    events = [call(10, "dp0.rank0", "relay.bind"), call(30, "dp0.rank0", "relay.send", "before", "fail"), TOLD]
    frames = [
        Frame(t * MS, "control", "dp0.rank1", "to_binder", 1, kind, nth=1) for t, kind in ((5, "join"), (40, "fail"))
    ]
    assert seconds(events, frames) == [
        "kill dp0.rank0 at dp0.rank0:relay.send[fail]#1:before",
        "drop fail #1 of dp0.rank1 on control to the binder -",
    ]


def test_second_ends_with_the_phase_if_the_run_has_come_through_it() -> None:
    events = [call(30, "dp0.rank0", "control.bind"), call(60, "dp0.rank0", "relay.bind")]
    assert len(seconds([*events, mark(50, "startup", "ready")])) == 1
    assert len(seconds([*events, TOLD])) == 2


def test_what_comes_after_the_last_word_to_users_is_pruned() -> None:
    events = [call(30, "dp0.rank0", "relay.bind"), TOLD, call(95, "client", "input.close")]
    assert seconds(events) == [
        "kill dp0.rank0 at dp0.rank0:relay.bind#1:after",
        "kill client at client:input.close#1:after -",
    ]


def test_a_frame_that_is_seen_again_when_it_is_released_is_one_place_and_the_broken_one_is_none() -> None:
    passed = [
        Frame(t * MS, "relay", "dp0.rank1", "to_connector", 1, kind, nth=1, fate=fate, rule=rule)
        for t, kind, fate, rule in (
            (20, "go", "held", 0),
            (30, "step", "held", 0),
            (50, "go", "released", 0),
            (51, "step", "released", 0),
        )
    ]
    seen = history([TOLD], faults=[FIRST], fired=[1], frames=passed)
    found = pairs.seconds(seen, 0, HANDSHAKE, TARGET)
    assert [one.row for one in found if one.kind == "drop"] == ["dp0.rank1 <- relay[step]#1"]


def test_a_place_is_known_if_any_dry_run_passes_it_whatever_its_number() -> None:
    dry = pairs.traces(history([*STARTED, call(2, "dp0.rank0", "control.poll")]))
    events = [STRUCK, call(30, "dp0.rank0", "control.poll", n=7), call(40, "dp0.rank0", "relay.close"), TOLD]
    found = pairs.seconds(history(events, faults=[FIRST], fired=[1]), 0, HANDSHAKE, TARGET, dry)
    assert {(one.row, one.known) for one in found} == {
        ("dp0.rank0:control.poll#7", True),
        ("dp0.rank0:relay.close#1", False),
    }


# ---- order ----


def second(what: str, since: int, *, known: bool = True, pruned: bool = False) -> Second:
    """A second fault: ``kill 3`` at the third poll of rank 0, ``drop 3`` of the third step frame."""
    kind, _, n = what.partition(" ")
    place = f"dp0.rank0:control.poll#{n}"
    at = Instant.parse(f"{place}:after")
    made: dict[str, Fault] = {
        "kill": Kill(at=at),
        "stop": Stop(at=at, seconds=0.3),
        "drop": Drop(link="relay", frame="step", victim="dp0.rank1", nth=int(n)),
    }
    return Second(place, kind, made[kind], since, known, pruned)


def first(n: int = 1, kind: str = "kill") -> Cell:
    made = second(f"{kind} {n}", 0)
    return Cell(made.row, kind, structs.replace(BASE, faults=(made.fault,)))


def words(found: Sequence[Pair]) -> list[str]:
    return [f"{pair.kind} {pair.row.partition('#')[2]}" for pair in found]


def test_error_paths_come_first_then_kinds_take_turns_the_nearest_first() -> None:
    found = [
        second("stop 9", 9, known=False),
        second("kill 4", 4),
        second("kill 3", 3),
        second("stop 3", 3),
        second("drop 8", 8),
        second("kill 9", 9, known=False),
    ]
    assert words(pairs.ordered([(first(), found)])) == ["kill 9", "stop 9", "kill 3", "drop 8", "stop 3", "kill 4"]


def test_every_first_fault_gets_one_pair_in_each_round_and_begins_with_another_kind() -> None:
    follows = [(first(n), [second("kill 7", 7), second("drop 7", 7), second("kill 8", 8)]) for n in (1, 2)]
    ordered = pairs.ordered(follows)
    assert all(len({one.first.row for one in ordered[at : at + 2]}) == 2 for at in (0, 2, 4))
    assert {one.kind for one in ordered[:2]} == {"kill", "drop"}
    assert ordered == pairs.ordered(follows[::-1]), "the same for the same histories, in whatever order they came"


def test_a_pair_that_is_met_in_both_orders_is_one_and_is_pruned_only_if_both_are() -> None:
    def both(one: bool, other: bool) -> tuple[Pair, ...]:
        return pairs.ordered(
            [(first(1), [second("kill 2", 5, pruned=one)]), (first(2), [second("kill 1", 5, pruned=other)])]
        )

    for one in (False, True):
        for other in (False, True):
            found = both(one, other)
            assert len(found) == 1
            assert found[0].pruned is (one and other)


def test_a_pair_is_the_plan_of_its_first_fault_and_the_second_behind_it() -> None:
    (pair,) = pairs.ordered([(first(), [second("stop 2", 5)])])
    assert [kind_of(fault) for fault in pair.plan.faults] == ["kill", "stop"]
    assert pair.name == "kill at dp0.rank0:control.poll#1, then stop at dp0.rank0:control.poll#2"


# ---- runs ----


class Following(FakeWorld):
    """A world in which every run is told of a death, and passes one socket's close before it and one after it."""

    def run(self, plan: Plan) -> History:
        super().run(plan)
        struck = [structs.replace(STRUCK, t=10 * MS)] if plan.faults else []
        events = [*struck, call(30, "dp0.rank0", "relay.close"), TOLD, call(95, "client", "input.close")]
        return structs.replace(history(events, faults=plan.faults, fired=[1] * len(plan.faults)), plan=plan)


def run_fake(
    monkeypatch: pytest.MonkeyPatch, judged: Callable[[Plan, int], Verdict], **kwargs: Any
) -> tuple[Enumeration, FakeWorld]:
    runs: dict[str, int] = {}

    def judge(seen: History) -> Verdict:
        runs[seen.plan.digest] = runs.get(seen.plan.digest, 0) + 1
        return judged(seen.plan, runs[seen.plan.digest])

    monkeypatch.setattr(trial, "judge", judge_by(judge))
    world = Following()
    cells = tuple(cells_of(BASE, Places((FIRST.at,), ())))
    enumerator = Enumerator(world, TARGET, HANDSHAKE, BASE, depth=2)
    found = enumerator.run(Grid(cells, Places((), ()), ()))
    return enumerator.follow(found, enumerator.pairs(), **kwargs), world


def text_of(found: Enumeration, width: int = 120) -> str:
    console = Console(width=width)
    with console.capture() as shown:
        console.print(heat_table(found))
    return shown.get()


def served(plan: Plan, run: int) -> Verdict:
    return verdict_of(plan)


def test_pairs_are_run_up_to_the_limit_and_pruned_ones_only_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    some, _ = run_fake(monkeypatch, served, limit=4)
    assert some.pairs is not None
    assert (some.pairs.met, some.pairs.pruned, len(some.pairs.done), some.exit_code) == (18, 9, 4, 0)
    every, world = run_fake(monkeypatch, served)
    assert every.pairs is not None
    assert (len(every.pairs.done), every.pairs.checked, every.runs) == (9, 0, 12)
    assert [len(plan.faults) for plan in world.runs] == [1] * 3 + [2] * 9
    full, _ = run_fake(monkeypatch, served, unpruned=True)
    assert full.pairs is not None
    assert (len(full.pairs.done), full.pairs.checked, full.pairs.differing) == (18, 9, ())


def test_a_second_fault_that_does_not_fire_is_no_failure_and_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(plan: Plan, run: int) -> Verdict:
        return verdict_of(plan) if len(plan.faults) == 1 else structs.replace(verdict_of(plan), verdict="vacuous")

    found, world = run_fake(monkeypatch, judged)
    assert found.pairs is not None
    assert (found.pairs.colours["missed"], found.exit_code, len(world.runs)) == (9, 0, 12)


def test_an_unknown_pair_is_run_again_and_a_red_one_is_told_in_full(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def judged(plan: Plan, run: int) -> Verdict:
        kinds = [kind_of(fault) for fault in plan.faults]
        if kinds == ["kill", "stop"]:
            return structs.replace(verdict_of(plan), verdict="budget")
        return wedge_of(plan) if kinds == ["raise", "kill"] else verdict_of(plan)

    found, _ = run_fake(monkeypatch, judged)
    assert found.pairs is not None
    assert {(one.colour, one.runs) for one in found.pairs.done if one.cell.kind == "stop"} >= {("unknown", 3)}
    assert found.exit_code == 1
    text = text_of(found.written(tmp_path))
    assert "raise ->" in text
    assert "1X" in text
    assert "pairs: 9 of 18 run, 9 pruned by lineage" in text
    assert "raise:before at dp0.rank1:relay.connect#1, then kill:after at dp0.rank0:relay.close#1" in text
    built = heat_object(found)["pairs"]
    assert (built["red"], built["unknown"], built["run"]) == (1, 1, 9)


def test_interrupted_pairs_keep_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(plan: Plan, run: int) -> Verdict:
        if [kind_of(fault) for fault in plan.faults] == ["raise", "raise"]:
            raise KeyboardInterrupt
        return verdict_of(plan)

    found, _ = run_fake(monkeypatch, judged)
    assert found.pairs is not None
    assert found.interrupted
    assert len(found.done) == 3
    assert len(found.pairs.done) < 9
    assert found.exit_code == 4, "what was not run is not known"


def test_every_count_is_shown_on_a_narrow_terminal() -> None:
    kinds = ("kill", "stop", "raise", "drop", "duplicate", "hold", "reorder", "reset")
    colours: tuple[Colour, ...] = ("served", "refused", "red", "unknown", "missed")
    done = []
    for n, colour in enumerate(colours):
        for kind in kinds:
            made = Pair(f"place {n}", kind, BASE, Cell("place", "kill:before", BASE), pruned=False)
            done += [Coloured(made, colour, 1, verdict_of(BASE))] * 1234
    result = Enumeration("handshake", "engine", "pushpull", 2, Grid((), Places((), ()), ()), (), (), 0, 0.0)
    text = text_of(structs.replace(result, pairs=Pairs(9, 0, 9, tuple(done))), width=80)
    assert "…" not in text
    assert all(text.count(f"1234{sign}") == len(kinds) for sign, _, _ in MARKS.values())


def test_a_pruned_pair_that_comes_to_something_else_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(plan: Plan, run: int) -> Verdict:
        wrong = len(plan.faults) == 2 and plan.faults[1].victim == "client" and kind_of(plan.faults[1]) == "stop"
        return wedge_of(plan) if wrong else verdict_of(plan)

    found, _ = run_fake(monkeypatch, judged, unpruned=True)
    assert found.pairs is not None
    assert {one.cell.column for one in found.pairs.differing} == {"stop:after"}
    assert "9 of the pruned were run all the same, and 3 came to something else" in text_of(found)


def test_a_pruned_pair_that_fails_before_its_second_fault_fires_says_nothing_of_the_pruning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def judged(plan: Plan, run: int) -> Verdict:
        if len(plan.faults) == 1:
            return verdict_of(plan)
        return structs.replace(wedge_of(plan), faults=verdict_of(plan, fired=0).faults)

    found, _ = run_fake(monkeypatch, judged, unpruned=True)
    assert found.pairs is not None
    assert (found.pairs.colours["red"], found.pairs.checked, found.pairs.differing) == (18, 0, ())


def test_what_is_pruned_comes_to_what_its_first_fault_comes_to_alone(world: RealWorld) -> None:
    """The pruning against the full set, for a few first faults; `enumerate --depth 2 --unpruned` does it for all."""
    enumerator = Enumerator(world, TARGET, HANDSHAKE, BASE, depth=2)
    wanted = ("client:startup.recv[ready]#1:after", "dp0.rank1:relay.connect#1:before")
    base = structs.replace(BASE, observe=TARGET.links(BASE))
    cells = cells_of(base, Places(tuple(map(Instant.parse, wanted)), ()))
    found = enumerator.run(Grid(tuple(cell for cell in cells if cell.kind == "kill"), Places((), ()), ()))
    met = enumerator.pairs()
    pruned = [pair for pair in met if pair.pruned]
    assert 0 < len(pruned) < len(met)
    full = enumerator.follow(found, [*pruned[::4], *met[:8]], unpruned=True).pairs
    assert full is not None
    assert full.checked > 0
    assert full.differing == ()
    assert full.exit_code == 0
