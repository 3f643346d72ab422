"""The demand at the end of every run whose engine lives: the faults are healed, and then it has to serve."""

from __future__ import annotations

import msgspec

from harness.clock import SECOND
from harness.faults import Block, Delay, Fault, Kill, Memory, Stop
from harness.history import Event, History
from harness.instant import Instant
from harness.judge import judge
from harness.plan import EngineOptions, Plan, Topology
from harness.verdict import Verdict
from harness.world.real import RealWorld
from tests.harness.synthetic import before_demand

LAST = "dp0.rank1:tp.all_gather#8:after"
"""Where rank 1 is done with the last of the four steps of the plan's request."""


def run(world: RealWorld, *faults: Fault, plugin: str = "", tp: int = 2) -> tuple[History, Verdict]:
    options = EngineOptions(plugins=(f"tests.harness.{plugin}",) if plugin else ())
    history = world.run(Plan(topology=Topology(tp=tp), engine=options, faults=faults))
    return history, judge(history)


def marks(history: History, site: str) -> list[Event]:
    return list(history.of("client", site, "mark"))


def test_a_run_without_faults_ends_with_a_request_that_is_served_and_two_answers(world: RealWorld) -> None:
    history, verdict = run(world)
    assert verdict.ok, verdict.findings
    assert verdict.served == 1, "the canary is not one of the user's requests"
    assert [event.kind for event in marks(history, "demand")] == ["begin", "requests", "pages", "end"]
    assert [event.kind for event in marks(history, "health")] == ["green"] * 4
    tokens = tuple(event.value for event in marks(history, "request.token") if event.number == 1)
    assert tokens == history.golden["r0"][:2]
    assert marks(history, "request.finished")[-1].kind == "length"


def test_it_costs_a_fraction_of_the_run(world: RealWorld) -> None:
    shares = []
    for _ in range(5):
        history, _ = run(world)
        begun, *_, ended = marks(history, "demand")
        shares.append((ended.t - begun.t) / (history.cleanup - history.began))
    assert sorted(shares)[2] < 0.25


def test_who_is_stopped_for_ever_when_all_is_served_is_continued_and_serves(world: RealWorld) -> None:
    history, verdict = run(world, Stop(Instant.parse(LAST)))
    assert verdict.ok, verdict.findings
    assert [count.fired for count in verdict.faults] == [1]
    begun, *_, ended = marks(history, "demand")
    assert ended.kind == "end"
    (stopped,) = history.of("dp0.rank1", "fault.fired")
    later = [event for event in history.of("dp0.rank1") if event.t > stopped.t and event.site != "fault.over"]
    assert later[0].t > begun.t, "it stood still until it was healed"
    assert (ended.t - begun.t) / SECOND < 10


def test_who_is_blocked_for_ever_when_all_is_served_goes_on(world: RealWorld) -> None:
    history, verdict = run(world, Block(Instant.parse(LAST)))
    assert verdict.ok, verdict.findings
    assert [count.fired for count in verdict.faults] == [1]
    assert marks(history, "demand")[-1].kind == "end"


def test_what_has_not_begun_by_then_still_comes(world: RealWorld) -> None:
    closing = Instant.parse("dp0.rank1:relay.close#1:before")
    history, verdict = run(world, Delay(closing, 0.05), Block(closing, or_after=0.05))
    assert verdict.ok, verdict.findings
    assert [count.fired for count in verdict.faults] == [1, 1]
    ended = marks(history, "demand")[-1].t
    over = [event.t for event in history.of("dp0.rank1", "fault.over")]
    fired = [event.t for event in history.of("dp0.rank1", "fault.fired")]
    assert min(fired) > ended
    assert max(over) - min(fired) >= 0.1 * SECOND


def test_a_limit_is_lifted_again(world: RealWorld) -> None:
    history, verdict = run(world, Memory(Instant.parse("dp0.rank1:tp.all_gather#2:after"), 8), plugin="probe")
    assert verdict.ok, verdict.findings
    before = [event.value for event in before_demand(history).of("dp0.rank1", "probe.memory")]
    assert before[-1] == 0
    assert [event.value for event in history.of("dp0.rank1", "probe.memory")][-1] == 1


def test_an_engine_that_takes_no_more_requests_is_found_by_the_demand_alone(world: RealWorld) -> None:
    history, verdict = run(world, plugin="deaf")
    assert verdict.word.startswith("wedged"), verdict
    assert verdict.blame is not None
    assert verdict.blame.owed == ("demand of the engine", "request r1 to client") or "r1" in verdict.blame.owed[-1]
    assert marks(history, "request.finished")[0].number == 0, "all that the plan asks for was served"


def test_a_dead_engine_is_asked_for_nothing(world: RealWorld) -> None:
    history, verdict = run(world, Kill(Instant.parse("dp0.rank1:tp.all_reduce#5:before")))
    assert verdict.ok, verdict.findings
    assert marks(history, "demand") == []
    assert {event.kind for event in marks(history, "health")[1:]} == {"dead"}


def test_with_one_rank_there_is_a_demand_too(world: RealWorld) -> None:
    history, verdict = run(world, tp=1)
    assert verdict.ok, verdict.findings
    assert marks(history, "demand")[-1].kind == "end"


def test_a_saved_run_gets_the_same_verdict(world: RealWorld) -> None:
    from harness import history as histories

    history, verdict = run(world, Stop(Instant.parse(LAST)))
    again = judge(histories.load(histories.dump(history)))
    assert msgspec.structs.replace(again, versions={}) == msgspec.structs.replace(verdict, versions={})
