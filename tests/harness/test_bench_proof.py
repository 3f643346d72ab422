"""The benchmarks of proofs and of false alarms: what they count, and what they call good."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness import scenario
from harness.bench import Options, controls, proof
from harness.scenario import Scenario


def shown(bench: Any, result: dict[str, Any]) -> str:
    out = StringIO()
    Console(file=out, width=120).print(bench.table(result))
    return out.getvalue()


@pytest.mark.parametrize(("alarms", "runs", "most"), [(0, 300, 0.00994), (0, 2000, 0.001497), (3, 1000, 0.00773)])
def test_the_rate_of_false_alarms_has_an_upper_bound(alarms: int, runs: int, most: float) -> None:
    assert controls.bound(alarms, runs) == pytest.approx(most, rel=0.005)  # as in tables of Clopper and Pearson


def only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group has this one scenario."""
    found: tuple[Scenario, ...] = scenario.resolve(name)
    monkeypatch.setattr(scenario, "resolve", lambda group: found)


def test_a_wedge_is_timed_named_and_left_alone_and_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only("full-queues", monkeypatch)
    monkeypatch.setattr(proof, "BUSY", 0)
    options = Options(rounds=1, out=tmp_path, leave=0.2)
    result = proof.measure(options)
    (row,) = result["shapes"]["idle"]
    assert (row["runs"], row["proved"], row["named"], row["slice_ms"]) == (1, 1, 1, 0)
    assert (result["runs"], result["refuted"], result["left_alone"]) == (2, 0, 0.2)
    assert 0 < result["median_ms"] == row["median_ms"]
    monkeypatch.setattr(proof, "RealWorld", None)
    assert proof.measure(options)["shapes"] == result["shapes"], "nothing is run again"
    assert "2 wedges" in shown(proof, result)


def test_a_proof_is_good_if_it_is_soon_named_and_never_refuted() -> None:
    row = {"shape": "a", "title": "a", "runs": 3, "proved": 3, "named": 3, "slice_ms": 0.0}
    row |= {"median_ms": 20.0, "p99_ms": 40.0}
    sliced = row | {"shape": "b", "slice_ms": 10.0, "median_ms": 55.0}
    result = {
        "name": "proof",
        "runs": 6,
        "left_alone": 0.0,
        "refuted": 0,
        "median_ms": 20.0,
        "p99_ms": 40.0,
        "cores": 2,
    }
    result |= {"busy": {"median_ms": 30.0, "p99_ms": 90.0}, "needed": {"median_ms": 50.0, "p99_ms": 250.0}}
    good = result | {"shapes": {"idle": [row, sliced], "busy": [row, sliced]}}
    assert proof.good(good)
    assert "good" in shown(proof, good)
    for wrong in (
        good | {"refuted": 1},
        good | {"median_ms": 51.0},
        good | {"p99_ms": 251.0},
        good | {"shapes": {"idle": [row | {"proved": 2}], "busy": [row]}},
        good | {"shapes": {"idle": [row | {"named": 2}], "busy": [row]}},
        good | {"shapes": {"idle": [sliced | {"median_ms": 61.0}], "busy": [row]}},
    ):
        assert not proof.good(wrong)
        assert "not good enough" in shown(proof, wrong)


def test_controls_are_run_with_each_safe_relay_and_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only("ticking-client", monkeypatch)
    options = Options(rounds=3, out=tmp_path)
    result = controls.measure(options)
    (row,) = result["rows"]
    assert (row["runs"], row["passed"], row["wedged"], row["violated"], row["other"]) == (3, 3, 0, 0, 0)
    assert controls.good(result)
    monkeypatch.setattr(controls, "RealWorld", None)
    assert controls.measure(options) == result, "nothing is run again"
    plans = [controls._plan(scenario.resolve("")[0], run) for run in range(3)]
    assert len({plan.engine.relay for plan in plans}) == 3


def test_a_false_alarm_or_too_many_that_did_not_pass_are_not_good() -> None:
    result: dict[str, Any] = {"runs": 200, "passed": 198, "false_alarms": 0}
    assert controls.good(result)
    assert not controls.good(result | {"passed": 197})
    assert not controls.good(result | {"false_alarms": 1})


def test_there_are_the_shapes_and_controls_that_are_asked_for() -> None:
    shapes, clean = scenario.resolve(proof.GROUP), scenario.resolve(controls.GROUP)
    assert len(shapes) >= 6
    assert {member.expected for shape in shapes for member in shape.members} == {"wedged"}
    assert all(member.blame for shape in shapes for member in shape.members)
    assert len(clean) == 11
    assert {member.expected for control in clean for member in control.members} == {"passed"}
    assert controls.OVERSUBSCRIBED in {control.name for control in clean}
