"""Promises that take minutes to test: many runs, a loaded machine, death of the harness at any moment."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from harness.interpreter import python
from harness.judge import judge
from harness.plan import Plan, Request, Topology, Workload
from harness.scenario import resolve
from harness.verdict import Verdict
from harness.world.real import RealWorld
from tests.harness.census import command_of, left_of, runs

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """Two processes on every core that do nothing but use it."""
    with ExitStack() as stack:
        for _ in range(2 * len(os.sched_getaffinity(0))):
            busy = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(busy.kill)
        yield


def test_500_runs_without_faults_beside_busy_processes_raise_no_false_alarm(busy_machine: None) -> None:
    mixes = [
        Workload((Request((1, 2, 3), 1 + seed % 6), Request((7, 8), 3, "previous" if seed % 2 else "ready")))
        for seed in range(500)
    ]
    wanted = (Plan(topology=Topology(tp=2), workload=mix, seed=seed) for seed, mix in enumerate(mixes))
    words: Counter[str] = Counter()
    with RealWorld(lanes=RealWorld.default_lanes()) as world:
        for _, history in world.run_many(wanted):
            words[judge(history).verdict] += 1
            assert history.residue == ()
    assert words["passed"] >= 495, words
    assert words["wedged"] == words["violated"] == 0, words


@pytest.mark.parametrize(
    ("relay", "word"),
    [("unsynchronised", "wedged (proved)"), ("handshake", "passed"), ("subscribed", "passed"), ("pushpull", "passed")],
)
def test_the_lost_first_request_ends_the_same_way_20_of_20(relay: str, word: str) -> None:
    (member,) = resolve("first-request-lost", [("engine.relay", relay)])[0].members
    with RealWorld(lanes=RealWorld.default_lanes()) as world:
        verdicts: list[Verdict] = [judge(history) for _, history in world.run_many([member.plan] * 20)]
    assert Counter(verdict.word for verdict in verdicts) == {word: 20}
    for verdict in verdicts:
        # On a busy machine the join is sometimes late by itself, and its hold has ended before it comes.
        assert [count.reached for count in verdict.faults] == [1]
        if verdict.proof is not None:
            assert verdict.proof.after_progress_ms < 1000


@pytest.mark.parametrize("moment", range(20))
def test_sigkill_of_a_hunt_at_a_random_moment_leaves_nothing(moment: int, tmp_path: Path) -> None:
    commands = (
        ["hunt", "--time", "60"],
        ["run", "first-request-lost", "--relay", "unsynchronised", "--runs", "500"],
        ["hunt", "--relay", "unsynchronised"],
    )
    shared = set(os.listdir("/dev/shm"))
    command = python("harness", *commands[moment % 3], "--out", str(tmp_path))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as hunt:
        time.sleep(random.Random(moment).uniform(0.1, 12.0))  # the moment of death is what varies
        # Stopped first, so that nothing is born between the census and the kill.
        hunt.send_signal(signal.SIGSTOP)
        family = psutil.Process(hunt.pid).children(recursive=True)
        folders = {word for child in family if runs(child) for word in command_of(child).split() if _is_world(word)}
        hunt.kill()
    assert left_of(family, 30) == []
    limit = time.monotonic() + 30
    while any(Path(folder).exists() for folder in folders) and time.monotonic() < limit:
        time.sleep(0.01)
    assert [folder for folder in folders if Path(folder).exists()] == []
    assert [process.pid for process in psutil.process_iter() if _writes_below(process, folders)] == []
    assert set(os.listdir("/dev/shm")) <= shared


def _is_world(word: str) -> bool:
    return word.startswith(str(Path(tempfile.gettempdir()) / "nowedge-world-"))


def _writes_below(process: psutil.Process, folders: set[str]) -> bool:
    try:
        target = os.readlink(f"/proc/{process.pid}/fd/1")
    except OSError:
        return False
    return any(target.startswith(folder) for folder in folders)
