"""The command line: every mistake is one line and exit code 2, and JSON is one object and nothing else."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from harness import cli, history
from harness.durations import DurationError, parse_seconds
from harness.interpreter import python
from harness.plan import Plan
from tests.harness.fake_world import history_of


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("run nosuch", "no scenario 'nosuch'"),
        ("run helthy", "did you mean healthy"),
        ("run healthy --tp 5", "topology.tp: 5"),
        ("run healthy --relay nosuch", "engine.relay"),
        ("run healthy --set engine.rely=x", "did you mean 'relay'"),
        ("run healthy --set nonsense", "PATH=VALUE"),
        ("run healthy --runs 0", "--runs"),
        ("run healthy --start thread", "topology.start"),
        ("run first-request-lost --tp 1", "dp0.rank1"),
        ("run healthy --out /proc/nowhere", "cannot write to /proc/nowhere"),
        ("run no/such.toml", "cannot read no/such.toml"),
        ("run misspelt.toml", "did you mean 'topology'"),
        ("run", "Missing argument"),
        ("replay text.md", "text.md is not a replay file"),
        ("replay nosuch.json", "cannot read nosuch.json"),
        ("judge text.md", "text.md is not a saved history"),
        ("judge nosuch.gz", "cannot read nosuch.gz"),
        ("sites nosuch", "no scenario"),
        ("hunt --time banana", "'banana' is not a time"),
        ("hunt --time 0", "is not a time"),
        ("hunt --plans none", "--plans"),
        ("hunt --tp 5", "topology.tp: 5"),
        ("hunt --tp 3..1", "3..1"),
        ("hunt --relay nosuch", "engine.relay"),
        ("hunt --seed x", "--seed"),
        ("enumerate start", "no phase 'start' can be enumerated; there is handshake, request"),
        ("enumerate handshake --tp 9", "topology.tp: 9"),
        ("enumerate handshake --depth 3", "--depth"),
        ("enumerate handshake --limit 9", "--limit is about pairs; add --depth 2"),
        ("enumerate handshake --unpruned", "--unpruned is about pairs; add --depth 2"),
        ("enumerate handshake --depth 2 --limit 0", "--limit"),
        ("bench nosuch", "there is throughput"),
        ("nosuch", "nosuch"),
        ("list --nosuch", "--nosuch"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    line: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.md").write_text("# Not what is asked for\n")
    (tmp_path / "misspelt.toml").write_text("[topolgy]\ntp = 2\n")
    assert cli.invoke(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("nowedge: ")
    assert err.count("\n") == 1
    assert words in err


def test_list_in_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["list", "--json"]) == 0
    built = json.loads(capsys.readouterr().out)
    assert {"healthy", "first-request-lost"} <= {one["name"] for one in built["scenarios"]}


def test_a_saved_history_is_judged_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "history.json.gz"
    history.save(history_of(Plan()), file)
    code = cli.invoke(["judge", str(file), "--json"])
    built = json.loads(capsys.readouterr().out)
    assert built["digest"] == Plan().digest
    assert code in (0, 1, 3, 4)


def test_a_fault_of_the_harness_is_one_line_with_the_place_of_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(name: str) -> None:
        raise RuntimeError("the zygote\nis gone")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.bench.get", broken)
    assert cli.invoke(["bench", "throughput"]) == 70
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "the zygote" in err
    written = list((tmp_path / ".nowedge").glob("traceback-*.txt"))
    assert len(written) == 1
    assert str(written[0].relative_to(tmp_path)) in err
    assert "RuntimeError" in written[0].read_text()


def test_an_interrupt_is_exit_code_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.bench.get", interrupted)
    assert cli.invoke(["bench", "throughput"]) == 130
    assert capsys.readouterr().err == "nowedge: interrupted\n"


def test_help_and_mistakes_are_answered_without_torch_or_hypothesis() -> None:
    code = "import sys; from harness.cli import invoke; code = invoke(sys.argv[1:]); "
    code += "print(code, {'torch', 'hypothesis'} & set(sys.modules))"
    for line, expected in (("--help", "0 set()"), ("run healthy --relay nosuch", "2 set()")):
        command = [*python("harness")[:-1], code, *line.split()]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == expected


def test_the_module_is_the_command_and_help_is_quick() -> None:
    best = 9.0
    for _ in range(3):
        began = time.monotonic()
        done = subprocess.run(python("harness", "--help"), capture_output=True, text=True, check=True)
        best = min(best, time.monotonic() - began)
    assert done.stdout.startswith("Usage: nowedge")
    assert best < 2.0


@pytest.mark.parametrize(("text", "seconds"), [("60", 60), ("90s", 90), ("5m", 300), ("1h", 3600), ("1.5m", 90)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "banana", "-5", "0", "5 m", "1d", "nan"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(DurationError):
        parse_seconds(text)
