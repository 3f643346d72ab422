"""The benchmark of searching counts what was found and when, says what is only a bound, and its baselines work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from msgspec import structs
from rich.console import Console

from engine.model.reference import greedy
from harness import scenario
from harness.bench import BenchError, Options, search
from harness.bench.baselines import case, engine_run, processes, program
from harness.bench.baselines.case import Case, Hit
from harness.bench.journal import Journal
from harness.bench.search import HYPOTHESIS, LOOP, OURS, PYTEST, TRIALS, WORLD, Told

BUG = "C1"


def _keep(out: Path, ours: list[Told], theirs: dict[str, list[Told]], alarm: str = "") -> None:
    """A journal in which everything is done: what is not given has found nothing."""
    with Journal(out / "search.jsonl") as journal:
        lines = {f"{OURS} {BUG}": ours, WORLD: [Told(3.0)]}
        for way, count in TRIALS.items():
            lines[f"{way} {BUG}"] = theirs.get(way, [Told(30.1)] * count)
            lines[f"{way} without a bug, pushpull"] = [Told(30.1, alarm if way == LOOP else "")]
        for key, told in lines.items():
            for number, one in enumerate(told):
                journal.add(key, number, msgspec.json.encode(one).decode())


def _options(out: Path, rounds: int) -> Options:
    return Options(rounds=rounds, bugs=(BUG,), out=out)


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for a journal that tells everything: nothing is searched."""

    def refuse(*args: object) -> None:
        pytest.fail("the journal tells everything")

    monkeypatch.setattr(program, "run", refuse)
    monkeypatch.setattr(search, "_warm", refuse)
    return tmp_path


def _text(result: dict[str, object]) -> str:
    console = Console(width=80)
    with console.capture() as captured:
        console.print(search.table(result))
    return captured.get()


def test_what_is_done_is_not_done_again_and_the_medians_are_compared(out: Path) -> None:
    found = [Told(9.0, "wrong"), Told(10.0, "wrong"), Told(12.0, "wrong"), Told(30.1), Told(30.1)]
    _keep(out, [Told(s, "violated", 2) for s in (0.3, 0.5, 0.4)], {HYPOTHESIS: found})
    result = search.measure(_options(out, 3))
    (row,) = result["bugs"]
    assert result["resumed"] == 3 + sum(TRIALS.values()) + len(TRIALS)
    assert (row[OURS]["median"], row[OURS]["found"]) == (0.4, 3)
    assert (row[HYPOTHESIS]["median"], row[HYPOTHESIS]["found"]) == (12.0, 3)
    assert (row["ratio"], row["censored"], result["censored"], row["missed"]) == (30.0, False, False, False)
    assert search.good(result)
    text = _text(result)
    assert "not found" in text
    assert "> 30" in text
    assert "3.0 s, once" in text
    assert "…" not in text
    assert "at least" not in text


def test_a_search_that_found_nothing_took_longer_than_its_budget(out: Path) -> None:
    found = [Told(9.0, "wrong"), Told(10.0, "wrong")] + [Told(30.1)] * 3
    _keep(out, [Told(1.0, "violated", 2), Told(61.0), Told(2.0, "violated", 4)], {HYPOTHESIS: found})
    (row,) = search.measure(_options(out, 3))["bugs"]
    assert row[HYPOTHESIS]["median"] is None
    assert row[OURS]["median"] == 2.0
    assert (row["ratio"], row["censored"]) == (15.0, True)


def test_a_bound_is_said_to_be_one(out: Path) -> None:
    _keep(out, [Told(1.0, "violated", 2)], {})
    result = search.measure(_options(out, 1))
    assert (result["ratio"], result["censored"], search.good(result)) == (30.0, True, True)
    assert "at least 30" in _text(result)
    assert not search.good({**result, "ratio": search.SOONER - 0.1})


def test_a_bug_that_ours_does_not_find_makes_no_ratio(out: Path) -> None:
    _keep(out, [Told(61.0), Told(62.0), Told(1.0, "violated", 2)], {})
    result = search.measure(_options(out, 3))
    (row,) = result["bugs"]
    assert (row[OURS]["median"], row["ratio"], result["missed"]) == (None, 0.0, [])
    assert not search.good(result)
    assert "> 60" in _text(result)


@pytest.mark.parametrize(("way", "missed"), [(HYPOTHESIS, True), (LOOP, True), (PYTEST, False)])
def test_what_one_of_ours_did_not_find_and_a_search_once_did_is_missed(out: Path, way: str, missed: bool) -> None:
    others = [Told(30.1)] * (TRIALS[way] - 1)
    _keep(out, [Told(0.1, "violated", 2)] * 4 + [Told(61.0)], {way: [Told(9.0, "wrong"), *others]})
    result = search.measure(_options(out, 5))
    assert result["missed"] == ([BUG] if missed else [])
    assert search.good(result) is not missed


def test_a_case_that_fails_without_the_bug_is_no_find(out: Path) -> None:
    alarms = [Told(9.0, "wrong", without="wrong")] * TRIALS[LOOP]
    _keep(out, [Told(0.1, "violated", 2), Told(61.0)], {LOOP: alarms})
    result = search.measure(_options(out, 2))
    column = result["bugs"][0][LOOP]
    assert (column["found"], column["median"], column["alarms"]) == (0, None, TRIALS[LOOP])
    assert result["missed"] == []


def test_an_alarm_where_nothing_is_wrong_is_told_and_is_not_good(out: Path) -> None:
    _keep(out, [Told(0.1, "violated", 2)], {}, alarm="not over in time")
    result = search.measure(_options(out, 1))
    assert not search.good(result)
    assert "loop without a bug, pushpull: not over in time" in _text(result)


def test_the_bugs_need_no_relay_of_their_own_and_are_of_several_groups() -> None:
    bugs = [scenario.bug(wanted) for wanted in search.BUGS]
    assert len({bug.group for bug in bugs}) >= 5
    for bug in bugs:
        failing = structs.replace(search._engine(bug), tp=3)
        assert failing.bug == bug.plugin
        assert search._without(bug, failing) == structs.replace(failing, bug="")


def test_the_answers_that_baselines_expect_are_the_references() -> None:
    for prompt, tokens in engine_run.ANSWERS.items():
        assert greedy("tiny", prompt, len(tokens)) == tokens


def test_a_program_that_ends_in_another_way_is_one_sentence() -> None:
    with pytest.raises(BenchError, match=r"kill_loop ended with exit status 1: IndexError"):
        program.run("harness.bench.baselines.kill_loop", [], Case(), 20.0)


def test_a_group_is_ended_with_a_process_that_is_stopped_and_one_that_outlives_its_parent() -> None:
    script = (
        "import subprocess, sys; subprocess.Popen(['sleep', '60']); print(flush=True); subprocess.run(['sleep', '60'])"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True) as leader:
        assert leader.stdout is not None
        leader.stdout.readline()
        others = [pid for pid in processes.living(leader.pid) if pid != leader.pid]
        assert others
        os.kill(others[0], signal.SIGSTOP)
        leader.kill()
        leader.wait()
        assert others[0] in processes.living(leader.pid)
        processes.end(leader.pid)
        assert processes.living(leader.pid) == []


def test_a_real_run_is_served_and_a_bug_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert case.run(Case()) == ""
    assert "expected [169, 96, 117, 102]" in case.run(search._engine(scenario.bug("C1")))
    assert list(tmp_path.iterdir()) == []


def test_a_real_client_is_killed_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert case.run(Case(hit=Hit("client", 0.1))) == ""
    monkeypatch.setattr(case, "TIMEOUT", 2.0)
    bug = search._engine(scenario.bug("T1"))
    assert case.run(structs.replace(bug, hit=Hit("client", 0.1))) == "processes are left 2 s after it was ready"
    assert list(tmp_path.iterdir()) == []
    assert not [entry for entry in Path("/proc").glob("[0-9]*/environ") if _mentions(entry, str(tmp_path))]


def _mentions(entry: Path, folder: str) -> bool:
    try:
        return folder.encode() in entry.read_bytes()
    except OSError:
        return False
