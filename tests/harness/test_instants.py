"""Instants on real processes: an order between processes, a deed at another role's instant, a function as a site."""

from __future__ import annotations

import signal

import pytest

from harness.faults import Block, Delay, Fault, Kill, Raise, Stop, Terminate
from harness.history import Event, History
from harness.instant import Instant
from harness.plan import PlanError
from harness.targets import get
from harness.targets.engine import timeouts_of
from harness.world.real import RealWorld
from tests.harness.test_faults import fired, plan, run, silence, statuses, told

SECOND = 1_000_000_000
STEP = "call(engine.core:EngineCore.step)"


def first(history: History, role: str, site: str, side: str = "after", n: int = 1) -> Event:
    """The event of that instant."""
    (event,) = [one for one in history.of(role) if (one.site, one.side, one.n) == (site, side, n)]
    return event


# a rendezvous


BIND = Instant("dp0.rank0", "relay.bind", side="before")


@pytest.mark.parametrize("binds_first", [True, False])
def test_a_rendezvous_orders_two_processes_either_way(world: RealWorld, binds_first: bool) -> None:
    """Rank 1 connects before or behind the group's rendezvous; here each waits for the other's start alone."""
    one, other = Instant("dp0.rank0", "start"), Instant("dp0.rank1", "start")
    late, early = (other, one) if binds_first else (one, other)
    reached = Instant(early.role, "control.bind" if binds_first else "call(engine.rank:RankProcess.run)", side="before")
    history, verdict = run(world, plan(Block(late, until=reached)))
    assert verdict.ok, verdict
    assert (verdict.served, fired(verdict)) == (1, [1])
    begun = min(event.t for event in history.of(late.role) if event.site.startswith(("relay.", "control.", "call(")))
    assert begun > first(history, reached.role, reached.site, "before").t


def test_a_block_ends_with_its_time_and_the_process_goes_on_meanwhile(world: RealWorld) -> None:
    at = Instant("dp0.rank1", STEP, n=2, side="before")
    history, verdict = run(world, plan(Block(at, or_after=0.4)))
    assert verdict.ok, verdict
    assert silence(history, "dp0.rank1") >= 0.4
    healthy, control = run(world, plan(observe=(STEP,)))
    assert control.ok
    assert silence(healthy, "dp0.rank1") < 0.4


def test_a_block_that_nothing_ends_is_held_by_the_plan_and_the_engine_says_who(world: RealWorld) -> None:
    _, verdict = run(world, plan(Block(Instant("dp0.rank1", STEP, n=2, side="before"))))
    assert verdict.ok, verdict
    assert (verdict.refused, fired(verdict)) == (1, [1])


def test_a_block_of_the_client_is_healed_once_all_else_sleeps(world: RealWorld) -> None:
    at = Instant("client", "call(engine.llm:AsyncLLM.generate)", side="before")
    history, verdict = run(world, plan(Block(at)))
    assert verdict.ok, verdict
    assert (verdict.served, fired(verdict)) == (1, [1])
    assert len(list(history.of(site="fault.over"))) == 1


def test_a_block_whose_end_is_behind_does_not_stop_at_all(world: RealWorld) -> None:
    late = Instant("dp0.rank0", STEP, n=3, side="before")
    history, verdict = run(world, plan(Block(late, until=Instant("dp0.rank1", STEP, n=1))))
    assert verdict.ok, verdict
    (begun,), (over,) = history.of(site="fault.fired"), history.of(site="fault.over")
    assert (over.t - begun.t) / SECOND < 0.1


# another role's instant


SENT = Instant("dp0.rank0", "output.send", "outputs", 2, "after")


def test_a_kill_of_another_role_is_done_before_the_trigger_goes_on(world: RealWorld) -> None:
    history, verdict = run(world, plan(Kill(SENT, to="dp0.rank1"), tp=3))
    assert verdict.ok, verdict
    assert (verdict.refused, fired(verdict)) == (1, [1])
    assert statuses(history)["dp0.rank1"] == -signal.SIGKILL
    assert told(history).startswith("EngineDeadError|dp0.rank1|killed by SIGKILL")
    (struck,) = history.of(site="fault.fired")
    assert struck.role == "dp0.rank0"
    died = next(process.ended for process in history.processes if process.role == "dp0.rank1")
    later = [event.t for event in history.of("dp0.rank0") if event.t > struck.t and event.site != "fault.fired"]
    assert died is not None
    assert min(later) > died


def test_a_stop_of_another_role_stands_before_the_trigger_goes_on(world: RealWorld) -> None:
    history, verdict = run(world, plan(Stop(SENT, 0.4, to="dp0.rank1"), tp=2))
    assert verdict.ok, verdict
    assert (verdict.served, fired(verdict)) == (1, [1])
    assert silence(history, "dp0.rank1") >= 0.4
    longer = (timeouts_of(plan()).step or 0.0) + 0.5
    history, verdict = run(world, plan(Stop(SENT, longer, to="dp0.rank1"), tp=2))
    assert told(history).startswith("EngineDeadError|dp0.rank1|")


def test_the_parent_can_be_killed_at_a_ranks_instant(world: RealWorld) -> None:
    history, verdict = run(world, plan(Kill(SENT, to="client")))
    assert verdict.ok, verdict
    assert statuses(history)["client"] == -signal.SIGKILL
    assert all(process.ended_by == "itself" for process in history.processes)


def test_a_second_signal_in_the_tear_down_still_leaves_nothing(world: RealWorld) -> None:
    begun = Instant("client", "call(engine.client.base:MPClient.shutdown)", side="before")
    inside = Instant("dp0.rank1", "relay.close", side="before")
    history, verdict = run(
        world, plan(Terminate(begun, "HUP", to="dp0.rank0"), Terminate(inside, "TERM", to="dp0.rank0"))
    )
    assert verdict.ok, verdict
    assert fired(verdict)[1:] == [1]
    assert history.residue == ()


# functions


def test_a_function_is_recorded_and_can_carry_a_fault(world: RealWorld) -> None:
    history, verdict = run(world, plan(Raise(Instant("dp0.rank1", STEP, n=2, side="before"))))
    assert verdict.ok, verdict
    assert (verdict.refused, fired(verdict)) == (1, [1])
    assert told(history).startswith("EngineDeadError|dp0.rank1|InjectedError")
    assert [event.n for event in history.of("dp0.rank1", STEP) if event.side == "after" and event.ok] == [1]


def test_a_function_taken_by_name_elsewhere_is_a_site_there_too(world: RealWorld) -> None:
    """`engine.rank` and `engine.client.starting` have `config_digest` from `engine.control`."""
    site = "call(engine.control:config_digest)"
    history, verdict = run(world, plan(observe=(site,)))
    assert verdict.ok
    assert {event.role for event in history.of(site=site)} == {"client", "dp0.rank0", "dp0.rank1"}


def test_a_coroutine_is_passed_after_its_last_step(world: RealWorld) -> None:
    site = "call(engine.client.aio:AsyncMPClient.get_output_async)"
    history, verdict = run(world, plan(observe=(site,)))
    assert verdict.ok
    begun = [event.t for event in history.of("client", site) if event.side == "before"]
    ended = [event.t for event in history.of("client", site) if event.side == "after" and event.ok]
    tokens = [event.t for event in history.of("client", "request.token")]
    assert begun[0] < ended[0] < tokens[0]


# what does not exist


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Delay(Instant.parse("dp0.rank0:relay.snd#1"), 1), ["faults[0].at", "relay.snd", "did you mean relay.send?"]),
        (Delay(Instant.parse("dp0.rank0:rely.send#1"), 1), ["faults[0].at", "did you mean relay.send?"]),
        (Delay(Instant.parse("dp0.rank0:tp.allreduce"), 1), ["did you mean tp.all_reduce?"]),
        (Delay(Instant.parse("dp0.rank0:relay.send[helo]"), 1), ["[helo]", "did you mean [hello]?"]),
        (
            Block(BIND, until=Instant.parse("dp0.rank1:relay.conect")),
            ["faults[0].until", "did you mean relay.connect?"],
        ),
        (Delay(Instant("dp0.rank0", "call(engine.core:EngineCore.stp)"), 1), ["did you mean call(engine.core:EngineC"]),
        (Delay(Instant("dp0.rank0", "call(engine.cre:EngineCore.step)"), 1), ["no module 'engine.cre'"]),
    ],
)
def test_an_instant_that_cannot_be_is_refused_with_the_nearest_name(fault: Fault, words: list[str]) -> None:
    with pytest.raises(PlanError, match=r".") as caught:
        get("engine").check(plan(fault))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (
            Delay(Instant.parse("dp0.rank1:relay.recv[step]#99"), 1),
            "passed relay.recv[step] 8 times, never the 99th time",
        ),
        (
            Delay(Instant.parse("dp0.rank1:relay.recv[hello]#1"), 1),
            "dp0.rank1 never passed relay.recv[hello]; near it: ",
        ),
    ],
)
def test_an_instant_that_is_never_passed_makes_the_run_vacuous_and_says_what_was(
    fault: Fault, why: str, world: RealWorld
) -> None:
    _, verdict = run(world, plan(fault))
    assert (verdict.verdict, verdict.exit_code) == ("vacuous", 3)
    assert why in verdict.faults[0].why


def test_a_role_that_never_began_is_said(world: RealWorld) -> None:
    launching = Instant("client", "call(engine.client.starting:start)", side="before")
    _, verdict = run(world, plan(Raise(launching), Delay(Instant("dp0.rank1", "start"), 1)))
    assert fired(verdict) == [1, 0]
    assert [count.why for count in verdict.faults] == ["", "dp0.rank1 never started"]
