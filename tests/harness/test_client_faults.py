"""Client faults on real processes: what one client does to itself is seen from outside, and harms nobody else."""

from __future__ import annotations

import itertools
from typing import get_args

import msgspec
import pytest

from harness import plan as plans
from harness.faults import (
    AbortRace,
    BlockLoop,
    Cancel,
    Close,
    DropClient,
    Fault,
    Flood,
    OnClient,
    Poison,
    SlowReader,
)
from harness.faults.abort_race import When
from harness.faults.cancel import At
from harness.faults.poison import What
from harness.history import Event, History
from harness.judge import judge
from harness.oracles import ORACLES
from harness.plan import EngineOptions, Plan, PlanError, Request, Topology, Workload
from harness.reductions import reductions
from harness.targets import get
from harness.verdict import Verdict
from harness.waits import owed
from harness.world.real import RealWorld
from tests.harness.synthetic import before_demand, mark, request
from tests.harness.synthetic import history as synthetic

SECOND = 1_000_000_000
LONG = 120
"""Tokens of a request that is left early: far more than the engine makes until it hears of that."""

PAIR = Workload((Request((1, 2, 3), 24), Request((7, 8), 24)))
LEFT = Workload((Request((1, 2, 3), LONG),))
STARTED = [mark(1, "startup", "begin"), mark(5, "startup", "ready", value=2)]


def plan(*faults: Fault, workload: Workload = PAIR, plugin: str = "", **config: int) -> Plan:
    options = EngineOptions(config=dict(config), plugins=(f"tests.harness.{plugin}",) if plugin else ())
    made = Plan(topology=Topology(tp=2), engine=options, workload=workload, faults=faults)
    plans.check(made)
    return made


def run(world: RealWorld, what: Plan) -> tuple[History, Verdict]:
    history = world.run(what)
    return history, judge(history)


def passed(world: RealWorld, what: Plan) -> History:
    """The history of a run that passes, whose faults have all fired, and whose client has nothing to complain of."""
    history, verdict = run(world, what)
    assert verdict.ok, verdict
    assert [count.fired for count in verdict.faults] == [1] * len(what.faults)
    client = history.process("client")
    assert client is not None
    assert client.log == ""
    return history


def heard(history: History) -> list[str]:
    """The kinds of the messages that rank 0 received from the client, but for the demand's request and calls."""
    kinds = [event.kind for event in history.of("dp0.rank0", "input.recv", "after") if event.kind in ("add", "abort")]
    if any(event.kind == "begin" for event in history.of("client", "demand")):
        del kinds[-1 - kinds[::-1].index("add")]
    return kinds


def steps(history: History) -> int:
    """How many steps rank 1 was told to make."""
    return sum(event.kind == "step" for event in history.of("dp0.rank1", "relay.recv", "after"))


def ends(history: History) -> dict[int, str]:
    """How each request ended: the engine's reason, the error's type, or how the client left it."""
    sites = ("request.finished", "request.failed", "request.given_up")
    return {event.number: event.kind for event in before_demand(history).of("client") if event.site in sites}


def tokens(history: History, number: int) -> list[Event]:
    return [event for event in history.of("client", "request.token") if event.number == number]


def longest_pause(events: list[Event]) -> float:
    """Seconds between two neighbours of these events."""
    return max((later.t - earlier.t for earlier, later in itertools.pairwise(events)), default=0) / SECOND


def test_without_a_fault_all_are_served_and_nothing_is_aborted(world: RealWorld) -> None:
    history = passed(world, plan())
    assert ends(history) == {0: "length", 1: "length"}
    assert heard(history) == ["add", "add"]


# cancel


@pytest.mark.parametrize(
    ("during", "after", "messages"),
    [
        ("start", 0, ["add"]),
        ("add", 0, ["add", "add", "abort"]),
        ("read", 0, ["add", "add", "abort"]),
        ("read", 3, ["add", "add", "abort"]),
        ("tick", 0, ["add", "add", "abort"]),
        ("tick", 3, ["add", "add", "abort"]),
        ("token", 3, ["add", "add", "abort"]),
    ],
)
def test_a_cancelled_task_ends_and_its_request_with_it(
    world: RealWorld, during: At, after: int, messages: list[str]
) -> None:
    history = passed(world, plan(Cancel(after_tokens=after, during=during)))
    assert ends(history) == {0: "cancelled", 1: "length"}
    assert sorted(heard(history)) == sorted(messages)
    assert after <= len(tokens(history, 0)) < 24
    if during == "add":
        arrived = [event for event in history.of("dp0.rank0", "input.recv", "after") if event.kind == "add"]
        assert max(event.size for event in arrived) > 3 * 96 * 8, "the prompt travels as rows of numbers"


def test_a_task_is_cancelled_in_its_sending_also_if_nothing_holds_that_up(world: RealWorld) -> None:
    history = passed(world, plan(Cancel(during="add"), plugin="hasty"))
    assert ends(history) == {0: "cancelled", 1: "length"}
    assert sorted(heard(history)) == ["abort", "add", "add"]


def test_a_task_can_be_cancelled_in_the_tick_in_which_its_token_is_there(world: RealWorld) -> None:
    """The output is in by then, and yet nobody reads it."""
    history = passed(world, plan(Cancel(during="tick"), workload=LEFT))
    (fired,) = history.of(site="fault.fired")
    outputs = [e.t for e in history.of("client", "output.recv", "after") if e.kind == "outputs"]
    assert outputs[0] < fired.t
    assert tokens(history, 0) == []
    read = passed(world, plan(Cancel(during="read"), workload=LEFT))
    (fired,) = read.of(site="fault.fired")
    outputs = [e.t for e in read.of("client", "output.recv", "after") if e.kind == "outputs"]
    assert outputs == [] or fired.t < outputs[0]


def test_a_cancelled_output_task_is_the_engines_death_and_stays_it(world: RealWorld) -> None:
    history = passed(world, plan(Cancel(after_tokens=2, during="outputs")))
    told = {event.text for event in history.of("client", "request.failed")}
    assert told == {"EngineDeadError|client|the output task was cancelled"}
    assert len(list(history.of("client", "latched"))) == 4
    assert {process.ended_by for process in history.processes} == {"itself"}


# close


@pytest.mark.parametrize("how", ["aclose", "break"])
def test_the_engine_stops_at_a_request_whose_stream_is_left(world: RealWorld, how: str) -> None:
    history = passed(world, plan(Close(after_tokens=3, how=how), workload=LEFT))  # type: ignore[arg-type]
    assert ends(history) == {0: "closed"}
    assert (len(tokens(history, 0)), heard(history)) == (3, ["add", "abort"])
    assert steps(history) < LONG <= steps(passed(world, plan(workload=LEFT)))


@pytest.mark.parametrize(
    "fault",
    [
        Close(after_tokens=3),
        Close(after_tokens=3, how="break"),
        Cancel(during="token", after_tokens=3),
        Cancel(after_tokens=1),
    ],
    ids=str,
)
def test_an_engine_that_keeps_what_its_client_has_left_is_found(world: RealWorld, fault: OnClient) -> None:
    _, verdict = run(world, plan(fault, workload=LEFT, plugin="careless"))
    assert (verdict.word, verdict.fingerprint) == ("violated", "LEAK:client"), verdict
    sentences = [finding.sentence for finding in verdict.findings]
    assert sentences[0] == "the engine still holds r0#0 although every stream is over"


# drop_client


def test_an_engine_that_nothing_refers_to_ends_while_its_program_goes_on(world: RealWorld) -> None:
    two = Workload((Request((1, 2, 3), LONG), Request((7, 8), LONG)))
    history = passed(world, plan(DropClient(after_tokens=3), workload=two))
    assert ends(history) == {0: "left open", 1: "left open"}
    assert steps(history) < LONG
    client, *ranks = history.processes
    assert [(rank.status, rank.ended_by) for rank in ranks] == [(0, "itself")] * 2
    gone = next(event for event in history.of("client", "demand") if event.kind == "processes")
    assert gone.ok
    assert all((rank.ended or 0) < (client.ended or 0) for rank in ranks)


def test_an_engine_that_somebody_else_still_holds_is_found(world: RealWorld) -> None:
    _, verdict = run(world, plan(DropClient(after_tokens=3), workload=LEFT, plugin="clinging"))
    assert verdict.word == "violated", verdict
    assert [finding.sentence for finding in verdict.findings if finding.oracle == "LEAK"] == [
        "dp0.rank0, dp0.rank1: still running although nothing refers to the engine's client any more",
        "the engine's client is still there although nothing refers to it any more",
    ]


# slow_reader, block_loop


def test_a_slow_reader_holds_up_nobody_else(world: RealWorld) -> None:
    two = Workload((Request((1, 2, 3), 10), Request((7, 8), 12)))
    history = passed(world, plan(SlowReader(seconds=0.25), workload=two))
    slow, other = tokens(history, 0), tokens(history, 1)
    assert (len(slow), len(other)) == (10, 12)
    assert (slow[-1].t - slow[0].t) / SECOND >= 9 * 0.25
    assert other[-1].t < slow[-1].t
    last = max(event.t for event in history.of("dp0.rank0", "output.send", "after") if event.t < slow[-1].t)
    assert last < slow[-1].t - SECOND * 0.25, "the engine was done long before its reader"
    healthy = tokens(passed(world, plan(workload=two)), 0)
    assert (healthy[-1].t - healthy[0].t) / SECOND < 9 * 0.25


def test_what_comes_while_the_loop_is_blocked_is_served_afterwards(world: RealWorld) -> None:
    """Blocked for longer than a step of the engine may take: nobody takes that for a death."""
    history = passed(world, plan(BlockLoop(seconds=1.4)))
    assert ends(history) == {0: "length", 1: "length"}
    both = list(history.of("client", "request.token"))
    assert longest_pause(both) >= 1.4
    (fired,), (over,) = history.of(site="fault.fired"), history.of(site="fault.over")
    meanwhile = [e for e in history.of("dp0.rank0", "output.send", "after") if fired.t < e.t < over.t]
    assert len(meanwhile) > 10, "the engine went on"
    assert longest_pause(list(passed(world, plan()).of("client", "request.token"))) < 1.4


# flood


def test_of_a_flood_the_engine_takes_what_it_may_hold_and_serves_that(world: RealWorld) -> None:
    history, verdict = run(world, plan(Flood(count=20), max_num_seqs=2, max_waiting=4))
    assert verdict.ok, verdict
    assert (verdict.served, verdict.refused) == (6, 16)
    assert heard(history) == ["add"] * 6
    refused = [event for event in history.of("client", "request.finished") if event.kind == "error"]
    assert len(refused) == 16
    assert all(event.text.startswith("busy|6 requests are under way") for event in refused)
    history, verdict = run(world, plan(Flood(count=4), max_num_seqs=2, max_waiting=4))
    assert (verdict.word, verdict.served, verdict.refused) == ("passed", 6, 0)


def test_a_large_flood_is_served_while_other_streams_go_on(world: RealWorld) -> None:
    history = passed(world, plan(Flood(count=60)))
    assert list(ends(history).values()) == ["length"] * 62


# poison

SENT = ("empty", "negative", "long", "no_tokens", "nan", "array", "shape", "not_finite", "token")


@pytest.mark.parametrize("what", get_args(What))
def test_a_request_that_nobody_can_serve_is_refused_alone(world: RealWorld, what: What) -> None:
    history = passed(world, plan(Poison(what=what)))
    found = ends(history)
    assert (found[0], found[1]) == ("length", "length")
    assert found[2] == ("error" if what in SENT else "EngineGenerateError")
    assert heard(history).count("add") == (3 if what in SENT else 2)
    assert tokens(history, 2) == []


# abort_race


@pytest.mark.parametrize(
    ("when", "first"),
    [
        ("before_add", {"length"}),
        ("after_add", {"abort"}),
        ("first_token", {"abort"}),
        ("last_token", {"abort", "length"}),
        ("finish", {"length"}),
        ("stranger", {"length"}),
    ],
)
def test_an_abort_ends_its_own_request_or_nothing(world: RealWorld, when: When, first: set[str]) -> None:
    # What is aborted early is long, so that the abort comes before its end however busy the machine is.
    own = Request((1, 2, 3), LONG if first == {"abort"} else 24)
    history = passed(world, plan(AbortRace(when=when), workload=Workload((own, Request((7, 8), 24)))))
    found = ends(history)
    assert found[0] in first
    assert found[1] == "length"
    assert heard(history).count("abort") == (when != "before_add")


@pytest.mark.parametrize("when", [when for when in get_args(When) if when not in ("before_add", "stranger")])
def test_an_id_that_is_used_again_right_after_an_abort_gets_its_own_tokens(world: RealWorld, when: When) -> None:
    history = passed(world, plan(AbortRace(when=when, reuse=1)))
    found = ends(history)
    assert (found[1], found[2]) == ("length", "length")
    assert [event.value for event in tokens(history, 2)] == list(history.golden["r1"])
    again = next(event for event in history.of("client", "request.sent") if event.number == 2)
    assert (again.text, again.kind) == ("r0", "r1")
    assert heard(history).count("add") == 3
    assert found[0] == {"after_add": "cancelled", "finish": "length"}.get(when, "closed")


def test_an_id_can_be_used_again_for_a_request_that_waited_for_its_turn(world: RealWorld) -> None:
    history = passed(world, plan(AbortRace(request=1, when="after_add", reuse=0), max_num_seqs=1))
    assert ends(history) == {0: "length", 1: "cancelled", 2: "length"}


# what cannot be done


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Cancel(request=2), r"faults\[0\]\.request: no request r2; there is r0 to r1"),
        (Close(request=-1), "no request r-1"),
        (AbortRace(reuse=5), "no request r5"),
        (Cancel(after_tokens=24), r"after_tokens: 24; r0 is under way with 0 to 23 tokens"),
        (Cancel(after_tokens=-1), "after_tokens: -1; at least 0"),
        (Cancel(after_tokens=1, during="start"), "with during = start there are none yet"),
        (Cancel(after_tokens=1, during="add"), "with during = add there are none yet"),
        (Cancel(during="token"), "with during = token there is at least 1"),
        (Close(after_tokens=0), "after_tokens: 0; a stream is left at a token"),
        (DropClient(after_tokens=0), "after_tokens: 0; a stream is left at a token"),
        (SlowReader(after_tokens=0), "after_tokens: 0; the first token is number 1"),
        (SlowReader(seconds=0), r"seconds: 0 is outside 0\.\.600"),
        (BlockLoop(seconds=601), r"seconds: 601 is outside 0\.\.600"),
        (Flood(count=0), r"count: 0 is outside 1\.\.1000"),
        (AbortRace(when="before_add", reuse=0), "reuse: 0; with when = before_add the request goes on"),
        (AbortRace(when="stranger", reuse=0), "reuse: 0; with when = stranger the request goes on"),
    ],
    ids=str,
)
def test_wrong_settings_get_one_line(fault: OnClient, words: str) -> None:
    with pytest.raises(PlanError, match=words) as caught:
        plan(fault)
    assert "\n" not in str(caught.value)


def test_a_fault_whose_moment_never_comes_makes_the_run_vacuous(world: RealWorld) -> None:
    _, verdict = run(world, plan(Cancel(), Close(after_tokens=3)))
    assert (verdict.word, [count.fired for count in verdict.faults]) == ("vacuous", [1, 0])
    assert [count.why for count in verdict.faults] == ["", "r0 was left with 0 tokens"]


# what oracles make of it


def sentences(code: str, *args: object, **kwargs: object) -> list[str]:
    found = ORACLES[code](synthetic(*args, **kwargs), get("engine"))  # type: ignore[arg-type]
    return [finding.sentence for finding in found]


def test_what_the_client_gave_up_is_owed_nothing_and_has_ended_once() -> None:
    sent, left = mark(10, "request.sent", number=0), mark(30, "request.given_up", "closed", 0)
    assert owed(synthetic([sent])) == ("request r0 to client",)
    assert owed(synthetic([sent, left])) == ()
    assert sentences("TERM", [sent, left]) == []
    assert sentences("TERM", [sent, left, mark(40, "request.finished", "length", 0)]) == ["request r0 ended 2 times"]


def test_a_demand_that_is_not_answered_is_owed() -> None:
    begun = mark(10, "demand", "begin")
    assert owed(synthetic([begun])) == ("demand of the engine",)
    assert owed(synthetic([begun, mark(20, "demand", "requests"), mark(21, "demand", "end")])) == ()


def test_term_finds_a_task_that_goes_on_although_it_was_cancelled() -> None:
    expected = ["request r0 went on although its task was cancelled"]
    assert sentences("TERM", request(10, (7, 8)), faults=[Cancel()], fired=[1]) == expected
    assert sentences("TERM", request(10, (7, 8)), faults=[Cancel()], fired=[0]) == []
    assert sentences("TERM", request(10, (7, 8)), faults=[Cancel(request=1)], fired=[1]) == []


def test_order_finds_a_token_of_a_request_that_was_given_up() -> None:
    left = [mark(10, "request.sent", number=0), mark(30, "request.given_up", "closed", 0)]
    late = mark(40, "request.token", number=0, value=7)
    assert sentences("ORDER", [*left, late]) == ["request r0 got 1 tokens after its end"]


def test_gold_knows_what_a_further_request_asks() -> None:
    sent = mark(10, "request.sent", "r1", 5)
    got = [mark(11, "request.token", number=5, value=7), mark(12, "request.token", number=5, value=9)]
    end = mark(13, "request.finished", "length", 5)
    assert sentences("GOLD", [sent, *got, end]) == ["request r5 got tokens [7, 9], the reference says [7, 8]"]


@pytest.mark.parametrize(
    ("events", "wrong"),
    [
        ([mark(12, "request.finished", "abort", 0)], "request r0 was aborted, and nobody had asked for that"),
        ([mark(9, "request.abort", number=0), mark(12, "request.finished", "abort", 0)], "was aborted, and nobody"),
        ([mark(11, "request.abort", number=0), mark(12, "request.finished", "abort", 0)], ""),
        ([mark(11, "shutdown", "begin"), mark(12, "request.finished", "abort", 0)], ""),
        (
            [mark(12, "request.finished", "error", 0, text="invalid|the prompt is empty")],
            "request r0 was refused, and nothing was wrong with it: the prompt is empty",
        ),
        (
            [mark(12, "request.finished", "error", 0, text="busy|try again")],
            "request r0 was refused as one too many, with 1 others under way of 2 that the engine may hold",
        ),
    ],
)
def test_blast_finds_what_ends_a_sound_request(events: list[Event], wrong: str) -> None:
    other = mark(8, "request.sent", number=1)
    found = sentences("BLAST", [*STARTED, other, mark(10, "request.sent", number=0), *events])
    assert bool(found) == bool(wrong)
    assert not wrong or wrong in found[0]


def test_blast_accepts_a_refusal_while_the_engine_is_full() -> None:
    others = [mark(7, "request.sent", number=1), mark(8, "request.sent", number=2)]
    busy = mark(12, "request.finished", "error", 0, text="busy|try again")
    assert sentences("BLAST", [*STARTED, *others, mark(10, "request.sent", number=0), busy]) == []
    died = mark(13, "request.failed", "EngineDeadError", 1, ok=False, text="EngineDeadError|dp0.rank0|gone")
    assert sentences("BLAST", [*STARTED, *others, mark(10, "request.sent", number=0), busy, died]) == []
    ended = mark(9, "request.finished", "length", 1)
    assert sentences("BLAST", [*STARTED, *others, ended, mark(10, "request.sent", number=0), busy])


@pytest.mark.parametrize(
    ("end", "wrong"),
    [
        (mark(12, "request.finished", "error", 5, text="invalid|the prompt is empty"), ""),
        (mark(12, "request.failed", "EngineGenerateError", 5, ok=False, text="EngineGenerateError||no"), ""),
        (mark(12, "request.failed", "TypeError", 5, ok=False, text="TypeError||no"), "ended with TypeError: no"),
        (mark(12, "request.finished", "length", 5), "should have been refused, and was served 0 tokens"),
        (mark(12, "request.finished", "error", 5, text="busy|later"), "was refused as one too many, with 0 others"),
    ],
)
def test_blast_wants_a_poisoned_request_refused_for_what_it_is(end: Event, wrong: str) -> None:
    found = sentences("BLAST", [*STARTED, mark(10, "request.sent", "poison", 5), end])
    assert bool(found) == bool(wrong)
    assert not wrong or wrong in found[0]


def test_the_death_oracle_leaves_the_refusal_of_a_poisoned_request_alone_but_not_a_death() -> None:
    sent = mark(10, "request.sent", "poison", 5)
    own = mark(12, "request.failed", "EngineGenerateError", 5, ok=False, text="EngineGenerateError||no")
    dead = mark(12, "request.failed", "EngineDeadError", 5, ok=False, text="EngineDeadError|dp0.rank0|no")
    assert sentences("DEATH", [*STARTED, sent, own], faults=[Poison()], fired=[1]) == []
    assert len(sentences("DEATH", [*STARTED, sent, dead], faults=[Poison()], fired=[1])) == 1


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (
            mark(20, "demand", "requests", value=2, ok=False, text="r0#0, r1#1"),
            "the engine still holds r0#0, r1#1 although every stream is over",
        ),
        (mark(20, "demand", "pages", ok=False), "pages of the cache are still in use although every stream is over"),
    ],
)
def test_leak_finds_what_is_kept(event: Event, sentence: str) -> None:
    assert sentences("LEAK", [event]) == [sentence]
    assert sentences("LEAK", [msgspec.structs.replace(event, ok=True)]) == []


def test_a_demand_that_meets_a_dead_engine_is_for_the_death_oracle() -> None:
    died = mark(20, "demand", "failed", ok=False, text="EngineDeadError|dp0.rank1|gone")
    assert sentences("LEAK", [died]) == []
    assert len(sentences("DEATH", [died], faults=[Close()], fired=[1])) == 1


def test_a_plan_with_client_faults_can_be_made_smaller() -> None:
    whole = plan(Flood(request=1, count=8), SlowReader(seconds=0.05))
    smaller = [reduced.faults for reduced in reductions(whole)]
    assert (Flood(request=0, count=8), SlowReader(seconds=0.05)) in smaller
    assert (Flood(request=1, count=4), SlowReader(seconds=0.05)) in smaller
    assert all(fault.victim == "client" for faults in smaller for fault in faults)
