"""Standalone scripts: no harness, no engine, and the same end as the plan that they are made of."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness import cli, scenario, script
from harness.plan import Plan
from harness.script import GAVE_UP, SERVED, WEDGED, ScriptError, Source

ALLOWED = {*sys.stdlib_module_names, "zmq", "torch"}


def source(name: str = "first-request-lost", *sets: tuple[str, str]) -> Source:
    return script.source(name, sets)


def run(what: Source, folder: Path) -> tuple[int, str]:
    """Exit code and output of the script of a plan, in a folder where there is nothing else."""
    path = folder / "wedge.py"
    patient = script.compose(what)
    assert "LIMIT = 5.0" in patient
    path.write_text(patient.replace("LIMIT = 5.0", "LIMIT = 2.0"))
    ended = subprocess.run(
        [sys.executable, "-I", str(path)], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize("faulted", [False, True], ids=["healthy", "faulted"])
@pytest.mark.parametrize("relay", script.RELAYS)
def test_a_script_imports_neither_the_harness_nor_the_engine(relay: str, faulted: bool) -> None:
    text = script.compose(source("first-request-lost" if faulted else "healthy", ("engine.relay", relay)))
    tree = ast.parse(text)
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= ALLOWED
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    assert ("Proxy" in classes) == faulted, "what the plan does not need is left out"
    assert {name.lower() for name in classes} & set(script.RELAYS) == {relay}


@pytest.mark.parametrize(("relay", "code"), [("unsynchronised", WEDGED), ("handshake", SERVED), ("pushpull", SERVED)])
def test_the_first_request_is_lost_by_the_script_as_by_the_engine(relay: str, code: int, tmp_path: Path) -> None:
    ended, told = run(source("first-request-lost", ("engine.relay", relay)), tmp_path)
    assert ended == code, told
    if code == WEDGED:
        assert "owed: request 0" in told
        assert told.count("most recent call first") == 2, "where each rank stands"
    assert list(tmp_path.iterdir()) == [tmp_path / "wedge.py"]


@pytest.mark.parametrize(
    ("fault", "relay", "code"),
    [
        ("delay at=dp0.rank1:relay.connect#1:before seconds=0.5", "unsynchronised", WEDGED),
        ("stop at=dp0.rank1:tp.all_reduce#3:before seconds=0.2", "subscribed", SERVED),
        ("stop at=dp0.rank1:relay.recv[step]#2:after", "pushpull", WEDGED),
        ("kill at=dp0.rank1:relay.recv[step]#1:after", "pushpull", GAVE_UP),
        ("exit at=dp0.rank1:start code=9", "handshake", WEDGED),
        ("drop link=relay frame=step victim=dp0.rank1 nth=2", "pushpull", WEDGED),
        ("duplicate link=output frame=outputs victim=dp0.rank0 nth=2", "pushpull", SERVED),
    ],
)
def test_each_fault_that_a_script_knows_does_what_it_says(fault: str, relay: str, code: int, tmp_path: Path) -> None:
    ended, told = run(source("healthy", ("engine.relay", relay), ("faults.+", fault)), tmp_path)
    assert ended == code, told
    assert told.count("fault   ") == 1


@pytest.mark.parametrize(
    ("name", "sets", "words"),
    [
        ("healthy", [("faults.+", "raise at=dp0.rank1:tp.all_reduce#2:before")], "a script can do .*; not: raise"),
        ("healthy", [("faults.+", "kill at=dp0.rank1:store.get#1:after")], "does not pass dp0.rank1:store.get#1:after"),
        ("healthy", [("faults.+", "drop link=control frame=join victim=dp0.rank1")], "has the links relay, input"),
        ("healthy", [("faults.+", "kill at=dp0.rank0:start to=dp0.rank1")], "what is done to itself alone"),
        ("healthy", [("workload.requests.0.after", "1.0")], "at once or one after the other"),
        ("healthy", [("engine.config.page_size", "8")], "no settings of the engine"),
        ("deaf-ranks", [], "no plugins, not handshake with scenarios.bugs.deaf_ranks"),
        ("rank0-killed-mid-handshake", [], "has 8 plans, and a script shows one"),
    ],
)
def test_what_no_script_can_show_is_refused_with_a_reason(name: str, sets: list[tuple[str, str]], words: str) -> None:
    with pytest.raises(ScriptError, match=words):
        script.compose(source(name, *sets))


def test_the_header_tells_how_often_it_wedges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "_run", lambda path: WEDGED)
    path = tmp_path / "w.py"
    line = ["script", "first-request-lost", "--relay", "unsynchronised", "--runs", "3", "--out", str(path), "--json"]
    assert cli.invoke(line) == 0
    assert json.loads(capsys.readouterr().out) == {
        "script": str(path),
        "runs": 3,
        "wedged": 3,
        "served": 0,
        "gave_up": 0,
    }
    assert "Where it was written: wedged 3 of 3." in path.read_text()


def test_the_script_of_a_replay_file_lies_beside_it(tmp_path: Path) -> None:
    from harness import replay
    from harness.replay import Replay

    plan: Plan = scenario.resolve("first-request-lost")[0].members[0].plan
    path = tmp_path / "replay.json"
    path.write_bytes(replay.dump(Replay(plan, "wedged", "w1", "proved", scenario="hunt")))
    told = script.source(str(path), [("engine.relay", "handshake")])
    assert (told.title, told.place) == ("hunt: wedged (proved)", tmp_path / "script.py")
    assert told.plan.engine.relay == "handshake"
