"""The stacks of a wedge's processes: whoever may look gets native frames too, else each process writes its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import folder
from harness.judge import judge
from harness.scenario import resolve
from harness.trial import Trial
from harness.world import stacks
from harness.world.real import RealWorld
from harness.zygote.child import STACKS

CODE = f"""
import faulthandler, sys
faulthandler.register({int(STACKS)}, file=2)
def stands_here():
    print("there", flush=True)
    sys.stdin.read()
stands_here()
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A program that stands in a function for ever, and writes its log where a role's is."""
    with (tmp_path / "client.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("by", ["py-spy", "itself"])
def test_the_stacks_of_a_process_say_where_it_stands(
    program: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    if by == "itself":
        monkeypatch.setattr(stacks, "_py_spy", lambda: None)
    found = stacks.collect({"client": program.pid}, tmp_path)
    assert "stands_here" in found["client"]
    assert (f"Process {program.pid}" in found["client"]) == (by == "py-spy")
    assert program.poll() is None


def test_a_process_that_is_gone_has_none(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert stacks.collect({"client": gone.pid}, tmp_path) == {}
    assert stacks.collect({}, tmp_path) == {}


def test_a_wedge_is_kept_with_the_stacks_of_all_its_processes(tmp_path: Path) -> None:
    plan = resolve("full-queues")[0].members[0].plan
    with RealWorld(stacks=True) as world:
        history = world.run(plan)
    verdict = folder.write(tmp_path, Trial(plan, history, judge(history)))
    text = Path(verdict.files["stacks"]).read_text("utf-8")
    for role in ("client", "dp0.rank0", "dp0.rank1"):
        assert f"== {role}\n" in text
    assert "_hand_over" in text
    assert "_work" in text
