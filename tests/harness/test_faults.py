"""Each fault on real processes: what it does is seen from outside, and the same plan without it is healthy."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from typing import Literal

import msgspec
import psutil
import pytest

from harness.faults import (
    Corrupt,
    Delay,
    Duplicate,
    Fault,
    Foreign,
    Hold,
    Raise,
    Reset,
    Squat,
    Stop,
    Terminate,
)
from harness.history import History
from harness.instant import Instant
from harness.judge import judge
from harness.plan import EngineOptions, Plan, PlanError, Request, Topology, Workload
from harness.targets import get
from harness.targets.engine import timeouts_of
from harness.verdict import Verdict
from harness.world.real import RealWorld

SAFE = ("pushpull", "subscribed", "handshake")
SECOND = 1_000_000_000
IN_A_STEP = Instant.parse("dp0.rank1:relay.recv[step]#2:after")
LAST_OUTPUT_SENT = Instant.parse("dp0.rank0:output.send[outputs]#3:after")
SPACED = Workload((Request((1, 2, 3), 3), Request((7, 8), 2, "previous", after=0.4)))


def plan(*faults: Fault, relay: str = "pushpull", tp: int = 2, **fields: object) -> Plan:
    made = Plan(topology=Topology(tp=tp), engine=EngineOptions(relay=relay), faults=faults)
    return msgspec.structs.replace(made, **fields)


def run(world: RealWorld, what: Plan) -> tuple[History, Verdict]:
    history = world.run(what)
    return history, judge(history)


def statuses(history: History) -> dict[str, int | None]:
    return {process.role: process.status for process in history.processes}


def told(history: History) -> str:
    """What the client was told of the end: type, culprit, cause."""
    ends = [event.text for event in history.of("client") if event.kind in ("failed", "EngineDeadError")]
    assert ends
    return ends[0]


def fired(verdict: Verdict) -> list[int]:
    return [count.fired for count in verdict.faults]


def silence(history: History, role: str) -> float:
    """The longest time, in seconds, in which the role did nothing, from its first event to its last."""
    times = [event.t for event in history.of(role)]
    return max(later - earlier for earlier, later in itertools.pairwise(times)) / SECOND


# stop


@pytest.mark.parametrize("relay", SAFE)
@pytest.mark.parametrize("victim", ["dp0.rank0", "dp0.rank2"])
def test_a_stop_shorter_than_the_deadline_is_served(world: RealWorld, relay: str, victim: str) -> None:
    at = Instant(victim, "tp.all_reduce", n=5)
    history, verdict = run(world, plan(Stop(at, 0.45), relay=relay, tp=3))
    assert verdict.ok, verdict
    assert (verdict.served, fired(verdict)) == (1, [1])
    (begun,), (over,) = history.of(site="fault.fired"), history.of(site="fault.over")
    assert (over.t - begun.t) / SECOND >= 0.45
    assert silence(history, victim) >= 0.45
    healthy, control = run(world, plan(relay=relay, tp=3))
    assert control.ok
    assert silence(healthy, victim) < 0.45


def test_a_stopped_process_is_stopped_for_everybody_and_only_it(world: RealWorld) -> None:
    runner = threading.Thread(target=world.run, args=(plan(Stop(IN_A_STEP, 0.5), tp=3),))
    seen: set[tuple[str, str]] = set()
    runner.start()
    while runner.is_alive():
        for child in psutil.Process().children(recursive=True):
            try:
                seen.add((child.name(), child.status()))
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.02)
    assert {name for name, status in seen if status == psutil.STATUS_STOPPED} == {"dp0.rank1"}


@pytest.mark.parametrize("relay", SAFE)
def test_a_stop_longer_than_the_deadline_ends_with_an_error_that_names_the_stopped_rank(
    world: RealWorld, relay: str
) -> None:
    limit = timeouts_of(plan()).step or 0.0
    history, verdict = run(world, plan(Stop(IN_A_STEP, limit + 1.0), relay=relay, tp=3))
    assert verdict.ok, verdict
    assert (verdict.refused, fired(verdict)) == (1, [1])
    assert told(history).startswith("EngineDeadError|dp0.rank1|")


def test_a_rank_that_is_never_continued_is_named_and_leaves_nothing(world: RealWorld) -> None:
    history, verdict = run(world, plan(Stop(IN_A_STEP)))
    assert verdict.ok, verdict
    assert told(history).startswith("EngineDeadError|dp0.rank1|")
    assert statuses(history)["dp0.rank1"] == -signal.SIGKILL
    assert {process.ended_by for process in history.processes} == {"itself"}
    assert all(not psutil.pid_exists(process.pid) for process in history.processes)


@pytest.mark.parametrize("relay", SAFE)
def test_ranks_that_are_all_stopped_while_idle_for_longer_than_the_deadline_go_on(world: RealWorld, relay: str) -> None:
    limit = timeouts_of(plan()).step or 0.0
    flushed = Delay(LAST_OUTPUT_SENT, 0.1)  # rank 0's sending thread is stopped too: without the output nobody is idle
    everybody = Stop(LAST_OUTPUT_SENT, limit + 0.5, also=("dp0.rank1", "dp0.rank2"))
    history, verdict = run(world, plan(flushed, everybody, relay=relay, tp=3, workload=SPACED))
    assert verdict.ok, verdict
    assert (verdict.served, fired(verdict)) == (2, [1, 1])
    assert all(silence(history, role) >= limit + 0.5 for role in history.plan.topology.ranks)
    assert silence(history, "client") < silence(history, "dp0.rank2")


@pytest.mark.parametrize("seconds", [1.0, None])
def test_a_stopped_process_is_held_by_the_plan_and_no_wedge(world: RealWorld, seconds: float | None) -> None:
    """A relay without deadlines waits for ever, yet somebody can still act: the lane, by the clock or at the end."""
    first = Instant.parse("dp0.rank1:relay.recv[step]#1:after")
    history, verdict = run(world, plan(Stop(first, seconds), relay="unsynchronised", budget=15.0))
    assert verdict.ok, verdict
    assert (verdict.served, fired(verdict), history.look) == (1, [1], None)
    assert verdict.seconds < 10


def test_processes_that_are_still_stopped_when_the_budget_ends_are_cleaned_up(world: RealWorld) -> None:
    first = Instant.parse("dp0.rank1:relay.recv[step]#1:after")
    stop = Stop(first, 60.0, also=("client",))
    history, verdict = run(world, plan(stop, relay="unsynchronised", budget=1.5))
    assert (verdict.word, fired(verdict)) == ("budget", [1])
    assert {process.ended_by for process in history.processes} == {"cleanup"}
    assert all(not psutil.pid_exists(process.pid) for process in history.processes)
    assert run(world, plan())[1].ok


# what a process does to itself


@pytest.mark.parametrize("at", [LAST_OUTPUT_SENT, IN_A_STEP], ids=str)
def test_an_error_raised_in_a_rank_is_the_cause_that_the_client_is_told(world: RealWorld, at: Instant) -> None:
    history, verdict = run(world, plan(Raise(at)))
    role = at.role
    assert verdict.ok, verdict
    assert fired(verdict) == [1]
    assert told(history).startswith(f"EngineDeadError|{role}|InjectedError: injected fault: raise an error in {role}")
    other = {"dp0.rank0": "dp0.rank1", "dp0.rank1": "dp0.rank0"}[role]
    assert [statuses(history)[role], statuses(history)[other]] == [10, 11]


@pytest.mark.parametrize("side", ["before", "after"])
def test_an_error_raised_in_a_collective_is_not_taken_for_that_of_a_peer(
    world: RealWorld, side: Literal["before", "after"]
) -> None:
    """gloo reports the loss of a peer by a RuntimeError too; this one is the rank's own."""
    history, verdict = run(world, plan(Raise(Instant("dp0.rank1", "tp.all_reduce", n=6, side=side)), tp=3))
    assert verdict.ok, verdict
    assert (verdict.refused, fired(verdict)) == (1, [1])
    assert told(history).startswith("EngineDeadError|dp0.rank1|InjectedError")


def test_a_rank_that_a_signal_ends_is_named(world: RealWorld) -> None:
    history, verdict = run(world, plan(Terminate(IN_A_STEP, "ABRT")))
    assert verdict.ok, verdict
    assert (verdict.refused, statuses(history)["dp0.rank1"]) == (1, -signal.SIGABRT)
    assert told(history).startswith("EngineDeadError|dp0.rank1|")


@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_a_rank_leaves_the_signals_of_a_keyboard_and_of_a_supervisor_to_the_launcher(
    world: RealWorld, name: Literal["INT", "TERM"]
) -> None:
    history, verdict = run(world, plan(Terminate(IN_A_STEP, name)))
    assert verdict.ok, verdict
    assert (verdict.served, fired(verdict)) == (1, [1])
    assert set(statuses(history).values()) == {0}


@pytest.mark.parametrize("relay", SAFE)
def test_a_squatter_takes_who_connects_later_and_nobody_who_is_connected(world: RealWorld, relay: str) -> None:
    early = Squat(Instant("dp0.rank0", "relay.bind"))
    history, verdict = run(world, plan(early, relay=relay))
    assert verdict.ok, verdict
    assert (verdict.refused, fired(verdict)) == (1, [1])
    assert told(history).startswith("StartupError|dp0.rank1|")
    late = Squat(Instant("dp0.rank0", "output.send"))
    history, verdict = run(world, plan(late, relay=relay))
    assert verdict.ok, verdict
    assert (verdict.served, fired(verdict), history.residue) == (1, [1], ())


# what the proxy does to frames


@pytest.mark.parametrize("relay", SAFE)
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Corrupt("relay", "step", "dp0.rank1", nth=2), "its checksum does not match"),
        (Duplicate("relay", "step", "dp0.rank1"), "STEP 1 repeats or goes back after STEP 1"),
        (Foreign("relay", "step", "dp0.rank1"), "is of foreign epoch"),
        (Foreign("relay", "step", "dp0.rank1", data="c1"), "relay frame of 1 bytes"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Fault) else "",
)
def test_a_frame_that_cannot_be_right_is_refused_by_the_rank_that_got_it(
    world: RealWorld, relay: str, fault: Fault, words: str
) -> None:
    history, verdict = run(world, plan(fault, relay=relay))
    assert verdict.ok, verdict
    assert (verdict.refused, fired(verdict)) == (1, [1])
    assert told(history).startswith("EngineDeadError|dp0.rank1|RelayError")
    assert words in told(history)
    fates = {frame.fate for frame in history.frames if frame.rule == 0}
    assert fates & {"corrupted", "injected"}
    healthy, control = run(world, plan(relay=relay, observe=("relay",)))
    assert (control.ok, control.served) == (True, 1)
    assert {frame.fate for frame in healthy.frames} == {"passed"}


@pytest.mark.parametrize("relay", [*SAFE, "unsynchronised"])
def test_a_broken_connection_is_an_error_where_frames_are_numbered_and_a_wedge_where_not(
    world: RealWorld, relay: str
) -> None:
    history, verdict = run(world, plan(Reset("relay", "step", "dp0.rank1"), relay=relay))
    assert fired(verdict) == [1]
    connections = {frame.connection for frame in history.frames if frame.connector == "dp0.rank1"}
    if relay == "unsynchronised":
        assert (verdict.verdict, verdict.grade) == ("wedged", "proved")
    else:
        assert verdict.ok, verdict
        assert (verdict.refused, told(history).partition("|")[0]) == (1, "EngineDeadError")
        assert connections == {1, 2}, "the sockets have connected again"


def test_a_foreign_record_on_the_way_back_is_refused_by_rank_0(world: RealWorld) -> None:
    history, verdict = run(world, plan(Foreign("control", "join", "dp0.rank1")))
    assert verdict.ok, verdict
    assert told(history).startswith("StartupError|dp0.rank0|RelayError: control record JOIN 1 of rank 1 is of foreign")


# what cannot be done


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            plan(Corrupt("relay", "join", "dp0.rank1")),
            r"'join' is the command READY; a corrupt join .* needs a message",
        ),
        (plan(Foreign("relay", "join", "dp0.rank1"), relay="handshake"), "'join' is the command SUBSCRIBE"),
        (plan(Squat(IN_A_STEP)), "dp0.rank1 does not bind relay; it binds nothing"),
        (plan(Squat(LAST_OUTPUT_SENT, "input")), "dp0.rank0 does not bind input; it binds relay, control"),
        (plan(Hold("control", "step", "dp0.rank1")), "no frame 'step' on control; there is join, fail"),
    ],
)
def test_a_fault_that_the_target_cannot_bear_is_refused(wrong: Plan, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        get("engine").check(wrong)
