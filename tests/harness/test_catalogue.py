"""The catalogue of faults: every kind is in it with a sentence, its settings and an example that can be run."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from harness import plan as plans
from harness.cli import invoke
from harness.faults import KINDS, catalogue, kind_of
from harness.judge import judge
from harness.plan import PlanError
from harness.scenario import resolve
from harness.targets import get
from harness.world.real import RealWorld


def with_fault(line: str) -> dict[str, Any]:
    raw: dict[str, Any] = {"topology": {"tp": 2}}
    plans.override(raw, plans.ONE_MORE, line)
    return raw


def test_every_kind_has_a_sentence_settings_and_an_example() -> None:
    assert set(catalogue.EXAMPLES) == set(KINDS)
    found = catalogue.entries()
    assert {entry.kind for entry in found} == set(KINDS)
    for entry in found:
        assert len(entry.sentence) > 20, entry.kind
        assert entry.about, entry.kind
        assert "optional" in {setting.name for setting in entry.settings}


@pytest.mark.parametrize("kind", KINDS)
def test_every_example_fires_as_it_is_shown(kind: str, world: RealWorld) -> None:
    *options, _, line = shlex.split(catalogue.entry(kind).command)[3:]
    overrides = [("topology.start", "fork"), (plans.ONE_MORE, line)]
    if options:
        assert options[0] == "--relay"
        overrides.append(("engine.relay", options[1]))
    plan = resolve("healthy", overrides)[0].members[0].plan
    assert plans.from_json(plans.to_json(plan)) == plan
    (fault,) = plan.faults
    assert (kind_of(fault), fault.complaint()) == (kind, None)
    assert str(fault)
    get("engine").check(plan)
    verdict = judge(world.run(plan))
    assert verdict.faults[0].fired
    assert verdict.ok or options, verdict


def test_a_fault_on_one_line_goes_behind_those_that_the_plan_has() -> None:
    raw = with_fault("delay at=dp0.rank0:start seconds=0.5")
    plans.override(raw, plans.ONE_MORE, "kill at='dp0.rank1:start' optional=true")
    assert [str(fault) for fault in plans.from_builtins(raw).faults] == [
        "delay dp0.rank0:start by 0.5 s",
        "kill dp0.rank1 at dp0.rank1:start",
    ]
    assert plans.from_builtins(raw).faults[1].optional


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", ["names no fault", "KIND SETTING=VALUE"]),
        ("'kill", ["names no fault", "No closing quotation"]),
        ("kil at=dp0.rank0:start", ["no fault 'kil'", "did you mean kill?"]),
        ("zzz", ["no fault 'zzz'", "there is ", "kill"]),
        ("kill at", ["'at' in 'kill at'", "for example kill at="]),
    ],
)
def test_a_line_that_is_no_fault_says_why(line: str, words: list[str]) -> None:
    with pytest.raises(catalogue.FaultTextError) as caught:
        with_fault(line)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_a_wrong_setting_on_one_line_is_told_by_its_name() -> None:
    with pytest.raises(PlanError, match=r"faults\[0\]: unknown field 'too'; did you mean 'to'\?"):
        plans.from_builtins(with_fault("kill at=dp0.rank0:start too=client"))


def test_the_command_shows_all_or_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["faults"]) == 0
    out = capsys.readouterr().out
    for kind in KINDS:
        assert kind in out
    assert invoke(["faults", "stop"]) == 0
    out = capsys.readouterr().out
    for word in ("seconds", "number", "[[faults]]", 'kind = "stop"', "--fault 'stop at="):
        assert word in out
    assert invoke(["faults", "--json"]) == 0
    assert {entry["kind"] for entry in json.loads(capsys.readouterr().out)["faults"]} == set(KINDS)
    assert invoke(["faults", "stp"]) == 2
    assert capsys.readouterr().err == "nowedge: no fault 'stp'; did you mean stop?\n"
