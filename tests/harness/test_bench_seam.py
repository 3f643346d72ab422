"""The benchmark of the seam: it measures both ways on one engine, and says whether the seam costs too much."""

from __future__ import annotations

import json
import os

import pytest
from rich.console import Console

from harness import cli
from harness.bench import seam
from harness.seam import install, region, site
from harness.seam.region import Recorder, Region
from harness.seam.site import Outlets
from harness.targets import get


def test_it_measures_with_and_without_the_seam_and_leaves_it_off(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.invoke(["bench", "seam", "--rounds", "1", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert code == (0 if result["reached"] else 1)
    assert 0.2 < result["ratio"] < 5
    assert result["interval"] == [result["ratio"]] * 2
    assert 0 < result["call_microseconds"] < 1000
    assert site.active() is None
    console = Console(width=120)
    with console.capture() as shown:
        console.print(seam.table(result))
    assert f"{result['ratio']:.1%} of that without" in shown.get()
    assert ("it reaches the 97%" if result["reached"] else "it does not reach the 97%") in shown.get()


@pytest.mark.parametrize("ratio", [0.96, 0.98])
def test_it_is_good_if_enough_of_the_throughput_is_left(ratio: float) -> None:
    assert seam.good({"reached": ratio >= seam.NEEDED}) is (ratio > 0.97)


def test_a_recorder_that_is_cleared_begins_anew() -> None:
    target, memory = get("engine"), region.create()
    try:
        recorder = Recorder(memory, 3, "client")
        made = install.begin(recorder, (), Outlets(), target, {}, target.group_name)
        site.deactivate()
        for _ in range(region.MAX_EVENTS + 5):
            made.mark("filled")
        found = Region(memory, 3)
        assert (found.lost, sum(1 for _ in found.events())) == (5, region.MAX_EVENTS)
        recorder.clear()
        made.mark("again")
        assert found.lost == 0
        assert [event.site for event in found.events()] == ["again"]
        found.close()
    finally:
        os.close(memory)
