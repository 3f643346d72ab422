"""A plan survives every round trip, and a wrong plan is refused with the name of the wrong field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import plan as plans
from harness.faults import (
    KINDS,
    AbortRace,
    Block,
    BlockLoop,
    Cancel,
    Clock,
    Close,
    Corrupt,
    Delay,
    Descriptors,
    Drop,
    DropClient,
    Duplicate,
    Exit,
    Fault,
    Flood,
    Foreign,
    Hold,
    Kill,
    Lag,
    Memory,
    Poison,
    Raise,
    Refuse,
    Reorder,
    Reset,
    Slow,
    SlowReader,
    Squat,
    Stall,
    Stop,
    Terminate,
    Truncate,
    kind_of,
)
from harness.instant import Instant
from harness.plan import EngineOptions, Plan, PlanError, Request, Topology, Workload

ROLES = ("client", "dp0.rank0", "dp0.rank1")
START, SENT = Instant("dp0.rank0", "start"), Instant("dp0.rank0", "output.send")


def instants() -> st.SearchStrategy[Instant]:
    passed = st.builds(
        Instant,
        role=st.sampled_from(ROLES),
        site=st.sampled_from(("relay.send", "tp.all_reduce", "output.send")),
        kind=st.sampled_from((None, "hello", "step")),
        n=st.integers(1, 99),
        side=st.sampled_from(("before", "after")),
    )
    return st.one_of(passed, st.sampled_from(ROLES).map(lambda role: Instant(role, "start")))


def _not_rank_1(at: Instant) -> bool:
    return at.role != "dp0.rank1"


def faults() -> st.SearchStrategy[Fault]:
    seconds = st.floats(0.001, 600, allow_nan=False)
    also = st.sampled_from(((), ("dp0.rank1",)))
    frame = {
        "link": st.just("relay"),
        "frame": st.sampled_from(("join", "step")),
        "victim": st.sampled_from(ROLES),
        "nth": st.integers(1, 9),
    }
    return st.one_of(
        st.builds(Delay, at=instants(), seconds=seconds, optional=st.booleans()),
        st.builds(Kill, at=instants(), optional=st.booleans()),
        st.builds(Stop, at=instants().filter(_not_rank_1), seconds=st.none() | seconds, also=also),
        st.builds(Block, at=st.just(START), until=st.sampled_from((None, SENT)), or_after=st.none() | seconds),
        st.builds(Raise, at=instants(), optional=st.booleans()),
        st.builds(Terminate, at=instants(), signal=st.sampled_from(("TERM", "INT", "ABRT"))),
        st.builds(Squat, at=instants().filter(lambda at: at.site != "start"), link=st.sampled_from(("relay", "input"))),
        st.builds(Corrupt, offset=st.none() | st.integers(-99, 99), **frame),
        st.builds(Duplicate, count=st.integers(1, 5), optional=st.booleans(), **frame),
        st.builds(Foreign, data=st.none() | st.binary(max_size=9).map(bytes.hex), **frame),
        st.builds(Drop, count=st.integers(1, 5), optional=st.booleans(), **frame),
        st.builds(
            Hold,
            until=st.none() | instants(),
            or_after=st.none() | seconds,
            optional=st.booleans(),
            **frame,
        ),
    )


def any_plan() -> st.SearchStrategy[Plan]:
    requests = st.builds(
        Request,
        prompt=st.lists(st.integers(0, 400), max_size=4).map(tuple),
        max_tokens=st.integers(1, 9),
        at=st.sampled_from(("ready", "previous")),
        after=st.sampled_from((0.0, 0.5, 600.0)),
    )
    settings = st.dictionaries(
        st.sampled_from(("max_num_seqs", "log_level", "share")),
        st.booleans() | st.integers(1, 99) | st.floats(0, 1) | st.text(max_size=3),
    )
    return st.builds(
        Plan,
        topology=st.builds(Topology, tp=st.integers(2, 4), start=st.sampled_from(("fork", "spawn"))),
        engine=st.builds(EngineOptions, relay=st.sampled_from(("handshake", "unsynchronised")), config=settings),
        workload=st.builds(Workload, requests=st.lists(requests, min_size=1, max_size=3).map(tuple)),
        faults=st.lists(faults(), max_size=3).map(tuple),
        observe=st.sampled_from(((), ("relay",))),
        seed=st.integers(0, 2**32),
        budget=st.floats(0.1, 3600, allow_nan=False),
    )


@given(any_plan())
def test_a_plan_survives_json_and_builtins(plan: Plan) -> None:
    assert plans.from_json(plans.to_json(plan)) == plan
    assert plans.from_builtins(plans.to_builtins(plan)) == plan


@given(any_plan(), any_plan())
def test_equal_plans_have_equal_digests_and_others_do_not(one: Plan, other: Plan) -> None:
    assert (one == other) == (one.digest == other.digest)
    assert len(one.digest) == 32


EACH: tuple[tuple[Fault, str], ...] = (
    (Delay(START, 0.5), "delay dp0.rank0:start by 0.5 s"),
    (Kill(START), "kill dp0.rank0 at dp0.rank0:start"),
    (Stop(START), "stop dp0.rank0 at dp0.rank0:start until faults are healed"),
    (Stop(START, 2, ("client",)), "stop dp0.rank0, client at dp0.rank0:start for 2 s"),
    (Stop(START, to="dp0.rank1"), "stop dp0.rank1 at dp0.rank0:start until faults are healed"),
    (Kill(START, to="dp0.rank1"), "kill dp0.rank1 at dp0.rank0:start"),
    (Terminate(START, to="client"), "send SIGTERM to client at dp0.rank0:start"),
    (Block(START), "block dp0.rank0:start until faults are healed"),
    (Block(START, SENT, 2.5), "block dp0.rank0:start until dp0.rank0:output.send#1:after or for 2.5 s"),
    (Exit(START, 3), "end dp0.rank0 with exit code 3 at dp0.rank0:start"),
    (Clock(START, -2.5), "set the clocks of dp0.rank0 back by 2.5 s at dp0.rank0:start"),
    (Descriptors(START, 2), "leave dp0.rank0 2 descriptors at dp0.rank0:start"),
    (Memory(START, 8), "leave dp0.rank0 8 MiB of memory at dp0.rank0:start"),
    (Raise(START), "raise an error in dp0.rank0 at dp0.rank0:start"),
    (Terminate(START, "INT"), "send SIGINT to dp0.rank0 at dp0.rank0:start"),
    (Squat(SENT), "squat on relay of dp0.rank0 at dp0.rank0:output.send#1:after"),
    (Drop("relay", "step", "dp0.rank1", count=2), "drop step #1 and 1 more of dp0.rank1 on relay"),
    (Hold("relay", "join", "dp0.rank1", or_after=1), "hold join #1 of dp0.rank1 on relay for 1 s"),
    (
        Hold("relay", "go", "dp0.rank1", or_after=1, direction="to_connector", connection=2, match="0xc1"),
        "hold go #1 of dp0.rank1 on relay to the connector in connection 2 with '0xc1' for 1 s",
    ),
    (Lag("relay", "step", "dp0.rank1", count=9, seconds=0.1), "lag step #1 and 8 more of dp0.rank1 on relay by 0.1 s"),
    (Reorder("relay", "step", "dp0.rank1"), "reorder step #1 of dp0.rank1 on relay behind the next frame"),
    (
        Stall("output", "outputs", "dp0.rank0", 2, SENT, 2),
        f"stall output at outputs #2 of dp0.rank0 until {SENT} or for 2 s",
    ),
    (Slow("output", "outputs", "dp0.rank0", rate=100), "slow output to 100 bytes/s from outputs #1 of dp0.rank0 on"),
    (Refuse("relay", "connect", "dp0.rank1"), "refuse dp0.rank1 on relay from the start on"),
    (Refuse("relay", "step", "dp0.rank1", 2, None, 1), "refuse dp0.rank1 on relay from step #2 on for 1 s"),
    (Truncate("relay", "step", "dp0.rank1", keep=3), "truncate step #1 of dp0.rank1 on relay to 3 bytes"),
    (Reset("relay", "step", "dp0.rank1", 2), "reset the connection of dp0.rank1 on relay at step #2"),
    (Corrupt("relay", "step", "dp0.rank1", offset=-1), "corrupt step #1 of dp0.rank1 on relay at byte -1"),
    (Duplicate("relay", "step", "dp0.rank1", 2), "duplicate step #2 of dp0.rank1 on relay"),
    (Foreign("relay", "step", "dp0.rank1"), "send a copy from a foreign run before step #1 of dp0.rank1 on relay"),
    (Foreign("relay", "go", "dp0.rank1", 1, "c1"), "send the foreign frame c1 before go #1 of dp0.rank1 on relay"),
    (Cancel(), "cancel r0 while it waits for a token, when r0 has 0 tokens"),
    (Cancel(during="start"), "cancel r0 before its first step"),
    (Cancel(during="outputs", after_tokens=1), "cancel the output task when r0 has 1 token"),
    (Close(after_tokens=2, how="break"), "close the stream of r0 by break when r0 has 2 tokens"),
    (DropClient(), "drop the client when r0 has 1 token"),
    (SlowReader(), "read r0 slowly, 0.1 s a token, when r0 has 1 token"),
    (BlockLoop(), "block the event loop for 0.5 s when r0 has 1 token"),
    (Flood(count=9), "flood with 9 requests when r0 has 1 token"),
    (Poison(what="same_id"), "poison (same id) when r0 has 1 token"),
    (AbortRace(when="stranger"), "abort ids of nobody just after r0 was sent"),
    (AbortRace(when="finish", reuse=0), "abort r0 at its end, and use its id again as r0"),
)


def test_a_fault_says_what_it_does_and_survives_json() -> None:
    assert {kind_of(fault) for fault, _ in EACH} <= set(KINDS)
    for fault, text in EACH:
        assert (fault.complaint(), str(fault)) == (None, text)
        plan = Plan(faults=(fault,))
        assert plans.from_json(plans.to_json(plan)) == plan


def test_settings_of_the_engine_are_a_table() -> None:
    plan = plans.from_toml("[engine.config]\nrelay_high_water = 10\nlog_level = 'INFO'\n")
    assert plan.engine.config == {"relay_high_water": 10, "log_level": "INFO"}
    assert plan.digest != Plan().digest
    other = plans.from_toml("[engine.config]\nlog_level = 'INFO'\nrelay_high_water = 10\n")
    assert (plan == other, plan.digest == other.digest) == (True, True)


def test_a_plan_in_toml_is_the_plan_in_json() -> None:
    text = """
        [topology]
        tp = 3
        [[workload.requests]]
        prompt = [1, 2]
        [[faults]]
        kind = "kill"
        at = "dp0.rank2:relay.recv[step]#2:after"
    """
    plan = plans.from_toml(text)
    assert plan.topology.tp == 3
    assert plan.faults == (Kill(at=Instant("dp0.rank2", "relay.recv", "step", 2, "after")),)
    assert plan.workload.requests == (Request(prompt=(1, 2)),)


def test_links_with_frame_faults_or_observed_run_through_the_proxy() -> None:
    held = Plan(faults=(Hold(link="relay", frame="join", victim="dp0.rank1"),))
    assert held.proxied == ("relay",)
    assert Plan(observe=("relay",)).proxied == ("relay",)
    assert Plan(faults=(Kill(at=Instant("dp0.rank0", "start")),)).proxied == ()


STEP = {"link": "relay", "frame": "step", "victim": "dp0.rank1"}
REQUEST = {"requests": [{"prompt": [1]}]}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"topolgy": {}}, ["topolgy", "topology"]),
        ({"topology": {"tpp": 2}}, ["topology", "tpp", "did you mean 'tp'"]),
        ({"topology": {"tp": 5}}, ["topology.tp", "5", "1 to 4"]),
        ({"topology": {"tp": "two"}}, ["topology.tp"]),
        ({"topology": {"start": "thread"}}, ["topology.start"]),
        ({"budget": 0}, ["budget"]),
        ({"workload": {"requests": []}}, ["workload.requests"]),
        ({"faults": [{"kind": "kill", "at": "dp0.rank0:relay.snd#0:after"}]}, ["#1"]),
        ({"faults": [{"kind": "kill", "at": "dp0.rank7:start"}]}, ["faults[0]", "dp0.rank7", "dp0.rank1"]),
        ({"faults": [{"kind": "kill", "at": "dp0.rank0:exit"}]}, ["faults[0]", "exit"]),
        ({"faults": [{"kind": "delay", "at": "dp0.rank0:start", "seconds": -1}]}, ["faults[0].seconds"]),
        ({"faults": [{"kind": "drop", "link": "relay", "frame": "step", "victim": "dp0.rank1", "nth": 0}]}, ["nth"]),
        ({"faults": [{"kind": "explode"}]}, ["faults", "explode"]),
        ({"faults": [{"kind": "stop", "at": "dp0.rank0:start", "seconds": 0}]}, ["faults[0].seconds", "0..600"]),
        ({"faults": [{"kind": "stop", "at": "dp0.rank0:start", "also": ["dp0.rank9"]}]}, ["no role 'dp0.rank9'"]),
        ({"faults": [{"kind": "stop", "at": "dp0.rank0:start", "also": ["dp0.rank0"]}]}, ["faults[0].also", "again"]),
        ({"faults": [{"kind": "exit", "at": "dp0.rank0:exit"}]}, ["faults[0].at", "its own exit"]),
        ({"faults": [{"kind": "exit", "at": "dp0.rank0:start", "code": 256}]}, ["faults[0].code", "0..255"]),
        ({"faults": [{"kind": "clock", "at": "dp0.rank0:start", "seconds": 0}]}, ["faults[0].seconds", "or 0"]),
        ({"faults": [{"kind": "descriptors", "at": "dp0.rank0:start", "left": -1}]}, ["faults[0].left", "0..1000"]),
        ({"faults": [{"kind": "memory", "at": "dp0.rank0:start", "megabytes": -1}]}, ["faults[0].megabytes"]),
        ({"faults": [{"kind": "raise", "at": "dp0.rank0:exit"}]}, ["faults[0].at", "exit"]),
        ({"faults": [{"kind": "terminate", "at": "dp0.rank0:exit"}]}, ["faults[0].at", "exit"]),
        ({"faults": [{"kind": "terminate", "at": "dp0.rank0:start", "signal": "QUIT"}]}, ["faults[0].signal", "QUIT"]),
        ({"faults": [{"kind": "kill", "at": "dp0.rank0:start", "to": "dp0.rank9"}]}, ["no role 'dp0.rank9'"]),
        ({"faults": [{"kind": "block", "at": "dp0.rank0:start", "until": "dp0.rank0:start"}]}, ["faults[0].until"]),
        ({"faults": [{"kind": "block", "at": "dp0.rank0:start", "until": "dp0.rank9:start"}]}, ["no role 'dp0.rank9'"]),
        ({"faults": [{"kind": "block", "at": "dp0.rank0:start", "or_after": 0}]}, ["faults[0].or_after", "0..600"]),
        ({"faults": [{"kind": "squat", "at": "dp0.rank0:start"}]}, ["faults[0].at", "relay.bind"]),
        ({"faults": [{**STEP, "kind": "corrupt", "nth": 0}]}, ["faults[0].nth"]),
        ({"faults": [{**STEP, "kind": "duplicate", "count": 0}]}, ["faults[0].count"]),
        ({"faults": [{**STEP, "kind": "foreign", "data": "c1z"}]}, ["faults[0].data", "c1z", "hexadecimal"]),
        ({"faults": [{**STEP, "kind": "lag"}]}, ["faults[0]", "seconds"]),
        ({"faults": [{**STEP, "kind": "lag", "seconds": 0}]}, ["faults[0].seconds", "0..600"]),
        ({"faults": [{**STEP, "kind": "slow", "rate": 0}]}, ["faults[0].rate", "1 byte"]),
        ({"faults": [{**STEP, "kind": "truncate", "keep": -1}]}, ["faults[0].keep", "-1"]),
        ({"faults": [{**STEP, "kind": "stall", "or_after": 0}]}, ["faults[0].or_after", "0..600"]),
        ({"faults": [{**STEP, "kind": "refuse", "frame": "connect", "nth": 2}]}, ["faults[0].frame", "no number"]),
        ({"faults": [{**STEP, "kind": "drop", "direction": "up"}]}, ["faults", "direction", "up"]),
        ({"faults": [{**STEP, "kind": "drop", "connection": 0}]}, ["faults[0].connection", "count from 1"]),
        ({"faults": [{**STEP, "kind": "drop", "match": "0xc"}]}, ["faults[0].match", "0xc", "hexadecimal"]),
        ({"faults": [{**STEP, "kind": "drop", "match": ""}]}, ["faults[0].match", "empty"]),
        ({"engine": {"config": {"max_num_seqs": [1]}}}, ["engine.config"]),
        ({"workload": {"requests": [{"prompt": [1], "after": -1}]}}, ["workload.requests[0].after", "-1"]),
        ({"faults": [{"kind": "hold", "link": "relay", "frame": "join"}]}, ["victim"]),
        ([1], ["table"]),
    ],
)
def test_a_wrong_plan_is_refused_with_the_name_of_the_field(raw: Any, words: list[str]) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        plans.from_builtins(raw)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("text", ["", "{", "[]", "nul"])
def test_text_that_is_no_json_plan_is_refused(text: str) -> None:
    with pytest.raises(PlanError):
        plans.from_json(text)


def test_override_sets_fields_by_their_path() -> None:
    raw: dict[str, Any] = {"faults": [{"kind": "kill", "at": "dp0.rank0:start"}]}
    plans.override(raw, "engine.relay", "unsynchronised")
    plans.override(raw, "topology.tp", "3")
    plans.override(raw, "faults.0.at", "dp0.rank1:start")
    plan = plans.from_builtins(raw)
    assert (plan.engine.relay, plan.topology.tp, plan.faults[0].victim) == ("unsynchronised", 3, "dp0.rank1")


@pytest.mark.parametrize("path", ["faults.1.at", "faults.x.at", "seed.deep", "faults.0.at.deep"])
def test_override_of_what_is_not_there_is_refused(path: str) -> None:
    raw = {"faults": [{"kind": "kill", "at": "dp0.rank0:start"}], "seed": 1}
    with pytest.raises(PlanError, match=path.split(".")[0]):
        plans.override(raw, path, "1")
