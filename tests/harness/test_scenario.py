"""Scenario files: all that ship can be run, families unfold, overrides come last, mistakes get one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import plan as plans
from harness import primitives
from harness.scenario import ScenarioError, parse, read, resolve, shipped
from harness.targets import get

KILL = """
title = "A kill"
[[faults]]
kind = "kill"
at = "dp0.rank0:start"
"""


@pytest.mark.parametrize("scenario", shipped(), ids=lambda scenario: scenario.name)
def test_every_shipped_scenario_can_be_run_and_says_what_to_expect(scenario) -> None:  # type: ignore[no-untyped-def]
    assert scenario.title
    assert scenario.tags
    for member in scenario.members:
        get(member.plan.target).check(member.plan)
        assert member.expect
        assert member.expected is not None or scenario.group == "wedges"  # run there by each strategy they speak of
    assert len({member.name for member in scenario.members}) == len(scenario.members)


def test_the_scenarios_of_the_report_are_there() -> None:
    names = {scenario.name for scenario in shipped()}
    assert {
        "healthy",
        "first-request-lost",
        "rank0-killed-mid-handshake",
        "done-frame-dropped",
        "rank-killed-while-streaming",
        "seed-together",
        "seed-rank1-late",
        "seed-rank0-late",
        "seed-negative",
    } <= names


def test_a_name_is_found_with_dashes_or_underscores_and_a_folder_is_a_group() -> None:
    assert resolve("first_request_lost") == resolve("first-request-lost")
    assert {scenario.group for scenario in resolve("relay")} == {"relay"}
    assert len(resolve("all")) == len(shipped())


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ScenarioError, match="did you mean first-request-lost"):
        resolve("frist-request-lost")
    with pytest.raises(ScenarioError, match="nowedge list"):
        resolve("zzz")


def test_a_family_has_one_member_per_value_and_several_keys_go_together() -> None:
    text = KILL + '[family]\n"topology.tp" = [2, 3]\n"faults.0.at" = ["dp0.rank1:start", "dp0.rank2:start"]\n'
    scenario = parse(text, "kills")
    assert [member.name for member in scenario.members] == ["tp=2, dp0.rank1:start", "tp=3, dp0.rank2:start"]
    assert [member.plan.topology.tp for member in scenario.members] == [2, 3]
    assert [member.plan.faults[0].victim for member in scenario.members] == ["dp0.rank1", "dp0.rank2"]


def test_overrides_come_after_the_family() -> None:
    text = KILL + '[family]\n"topology.tp" = [2, 3]\n'
    scenario = parse(text, "kills", [("topology.tp", "4"), ("engine.relay", "unsynchronised")])
    assert [member.plan.topology.tp for member in scenario.members] == [4, 4]
    assert scenario.members[0].plan.engine.relay == "unsynchronised"


def test_the_expectation_is_that_of_the_relay_that_runs() -> None:
    text = KILL + '[expect]\npushpull = "passed"\nunsynchronised = "wedged"\nblame = "dp0.rank1 waits"\n'
    assert parse(text, "k").members[0].expected == "passed"
    other = parse(text, "k", [("engine.relay", "unsynchronised")]).members[0]
    assert (other.expected, other.blame) == ("wedged", "dp0.rank1 waits")
    assert parse(text, "k", [("engine.relay", "subscribed")]).members[0].expected is None


def test_a_bare_plan_is_a_scenario_in_toml_and_in_json(tmp_path: Path) -> None:
    plan = parse(KILL.replace('title = "A kill"', ""), "k").members[0].plan
    toml, json = tmp_path / "my_plan.toml", tmp_path / "my_plan.json"
    toml.write_text(KILL)
    json.write_bytes(plans.to_json(plan))
    assert read(toml).members[0].plan == read(json).members[0].plan == plan
    assert read(toml).name == "my-plan"
    assert not read(toml).family


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("title = 3", ["title", "text"]),
        ('tags = "x"', ["tags", "list"]),
        ('[expect]\nhandshake = "pased"', ["expect.handshake", "pased", "passed"]),
        ('[family]\n"topology.tp" = 3', ["family"]),
        ('[family]\n"topology.tp" = [2, 3]\n"seed" = [1]', ["family", "1 and 2"]),
        (KILL + '[family]\n"faults.3.at" = ["x"]', ["faults.3.at"]),
        ("[topology]\ntpp = 2", ["topology", "tpp", "tp"]),
        ("faults = [", ["not TOML"]),
    ],
)
def test_a_wrong_file_is_refused_with_file_and_field(tmp_path: Path, text: str, words: list[str]) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    with pytest.raises(ScenarioError, match=r"wrong\.toml") as caught:
        read(file)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot read"):
        resolve(str(tmp_path / "none.toml"))
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScenarioError, match="UTF-8"):
        resolve(str(binary))


def test_every_primitive_of_the_reports_has_a_scenario_or_a_reason() -> None:
    users = primitives.uses(shipped())
    used = {code for code, names in users.items() if names}
    assert used.isdisjoint(primitives.WITHOUT)
    assert used | primitives.WITHOUT.keys() == primitives.PRIMITIVES.keys()
    assert len(used) >= 24
