"""The benchmarks: what is done is kept, what is told comes from runs, and no cell of the table is without a reason."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from harness import bench
from harness.bench import Options, journal, relays, rows, starts
from harness.bench.journal import Journal
from harness.faults import Delay
from harness.plan import Plan
from harness.scenario import shipped
from harness.targets import get
from harness.verdict import Word

GIVEN = {
    "--rounds": Options(rounds=3),
    "--messages": Options(messages=9),
    "--lanes": Options(lanes=2),
    "--tp": Options(tp=3),
    "--relay": Options(relays=("handshake",)),
    "--bug": Options(bugs=("H1",)),
    "--fresh": Options(fresh=True),
    "--leave": Options(leave=1.0),
}
FIELDS = dict(zip(GIVEN, ("rounds", "messages", "lanes", "tp", "relays", "bugs", "fresh", "leave"), strict=True))


@pytest.mark.parametrize("name", bench.NAMES)
def test_an_option_that_does_not_apply_is_refused_before_anything_runs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = bench.get(name)
    measured: list[Options] = []

    def measure(options: Options) -> dict[str, str]:
        measured.append(options)
        return {"name": name}

    monkeypatch.setattr(module, "measure", measure)
    idle = {flag: options for flag, options in GIVEN.items() if FIELDS[flag] not in module.USES}
    assert idle
    for flag, options in idle.items():
        with pytest.raises(bench.BenchError, match=f"{name}: leave {flag} out; it takes "):
            bench.measure(name, options)
    assert measured == []
    for flag in GIVEN.keys() - idle.keys():
        assert bench.measure(name, GIVEN[flag]) == {"name": name}
    assert len(measured) == len(GIVEN) - len(idle)


def test_a_journal_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "done.jsonl"
    with Journal(path) as first:
        first.add("plan", 0, "served")
        first.add("plan", 1, "wedge")
    path.write_bytes(path.read_bytes()[:-10])  # killed in the middle of a line
    with Journal(path) as again:
        assert (again.told("plan", 0), again.told("plan", 1)) == ("served", None)
        again.add("plan", 1, "served")
    with Journal(path) as third:
        assert third.told("plan", 1) == "served"
    with Journal(path, fresh=True) as fresh:
        assert fresh.told("plan", 0) is None


def test_what_other_code_has_done_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "done.jsonl"
    with Journal(path) as first:
        first.add("plan", 0, "served")
    assert journal.code_digest() == journal.code_digest()
    monkeypatch.setattr(journal, "code_digest", lambda: "other")
    with Journal(path) as other:
        assert other.told("plan", 0) is None


def test_a_journal_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(bench.BenchError, match="cannot use"):
        Journal(tmp_path / "file" / "done.jsonl")


def test_starts_delay_every_rank_by_its_own_time_and_are_the_same_again() -> None:
    plans = [starts.plan_of("pushpull", 3, index) for index in range(50)]
    assert plans == [starts.plan_of("pushpull", 3, index) for index in range(50)]
    assert len({plan.digest for plan in plans}) == 50
    for plan in plans:
        get("engine").check(plan)
        delays = [fault for fault in plan.faults if isinstance(fault, Delay)]
        assert [delay.victim for delay in delays] == list(plan.topology.ranks)
        assert all(0 < delay.seconds <= starts.LONGEST for delay in delays)
    seconds = [fault.seconds for plan in plans for fault in plan.faults if isinstance(fault, Delay)]
    assert min(seconds) < 0.02
    assert max(seconds) > 0.18


def test_starts_are_run_once_and_told_by_strategy(tmp_path: Path) -> None:
    options = Options(rounds=3, relays=("pushpull", "subscribed"), lanes=2, out=tmp_path)
    first = starts.measure(options)
    assert (first["resumed"], first["relays"]) == (0, {"pushpull": {"served": 3}, "subscribed": {"served": 3}})
    assert starts.good(first)
    more = starts.measure(Options(rounds=4, relays=("pushpull", "subscribed"), lanes=2, out=tmp_path))
    assert (more["resumed"], more["relays"]["pushpull"]) == (6, {"served": 4})
    assert not starts.good({**more, "relays": {"pushpull": {"served": 3, "wedged (proved)": 1}}})


def test_every_cell_of_the_relays_table_has_a_scenario_or_a_reason() -> None:
    columns = (*get("engine").safe_relays(), *rows.UNSAFE)
    assert columns == ("handshake", "pushpull", "subscribed", "unsynchronised", "connected", "unsynchronised-deadline")
    cases = relays._cases(shipped(), columns)
    filled = {(case.row, case.relay) for case in cases}
    for row in rows.ROWS:
        for relay in columns:
            assert ((row.name, relay) in filled) != bool(row.reason(relay)), f"{row.name} with {relay}"
    for case in cases:
        get("engine").check(case.plan)


@pytest.mark.parametrize(
    ("told", "word"),
    [
        (["passed/served"], "served"),
        (["passed/served", "passed/error rank 1"], "error: rank 1"),
        (["passed/error rank 2", "passed/error nobody, rank 1"], "error: nobody, rank 1, rank 2"),
        (["violated/error rank 1"], "error: rank 1"),
        (["passed/served", "violated/DEATH+GOLD"], "violated DEATH+GOLD"),
        (["passed/served", "budget/budget"], "budget"),
        (["violated/GOLD", "wedged/wedged (proved)"], "wedge"),
    ],
)
def test_a_cell_says_the_worst_that_came_up(told: list[str], word: str) -> None:
    assert relays._word(Counter(told)) == word


@pytest.mark.parametrize(
    ("relay", "expect", "told", "good"),
    [
        ("pushpull", "passed", "passed/served", True),
        ("pushpull", "passed", "passed/error rank 1", True),
        ("pushpull", "passed", "vacuous/vacuous", False),
        ("pushpull", "violated", "violated/error rank 1", True),
        ("pushpull", "violated", "violated/GOLD", False),
        ("pushpull", "wedged", "wedged/wedged (proved)", False),
        ("unsynchronised", "wedged", "wedged/wedged (proved)", True),
        ("unsynchronised", "wedged", "passed/served", False),
    ],
)
def test_a_safe_strategy_may_serve_or_say_who_failed_and_a_bad_one_has_to_be_caught(
    relay: str, expect: Word, told: str, good: bool
) -> None:
    case = relays.Case("W10", relay, "some", "", Plan(), expect)
    assert relays._cell(rows.ROWS[9], relay, [(case, told)])["as_expected"] is good


def test_an_unknown_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(bench.BenchError, match="no column 'nosuch'; there is handshake"):
        relays.measure(Options(relays=("nosuch",), out=tmp_path))
