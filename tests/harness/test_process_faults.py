"""Faults of one process on real processes: its end, its clocks, its limits; each with the healthy run beside it."""

from __future__ import annotations

import os
import resource
import signal
import time

import pytest

from harness.faults import AGAIN, Clock, Descriptors, Exit, Fault, Memory, Restart
from harness.history import History, Process
from harness.instant import Instant
from harness.plan import EngineOptions, Plan, Request, Workload
from harness.seam.flags import BYTES, Flags
from harness.targets.engine import timeouts_of
from harness.world.deeds import Deeds
from harness.world.real import RealWorld
from harness.zygote import wire
from tests.harness.synthetic import before_demand
from tests.harness.test_faults import fired, plan, run, statuses, told

STEP = "call(engine.core:EngineCore.step)"
SECOND_STEP = Instant("dp0.rank1", STEP, n=2, side="before")
PROBE = "tests.harness.probe"
"""A plugin that notes in every process, at each step, what its clocks and limits are."""


def probed(history: History, role: str, what: str) -> list[int]:
    """What the plugin saw in that role, in the order of time."""
    return [event.value for event in history.of(role, f"probe.{what}")]


# exit


@pytest.mark.parametrize("code", [0, 7])
@pytest.mark.parametrize("role", ["dp0.rank0", "dp0.rank2"])
def test_a_silent_exit_is_a_death_with_that_rank_as_its_culprit(world: RealWorld, role: str, code: int) -> None:
    history, verdict = run(world, plan(Exit(Instant(role, STEP, n=2, side="before"), code), tp=3))
    assert verdict.ok, verdict
    assert (verdict.refused, fired(verdict)) == (1, [1])
    assert statuses(history)[role] == code
    assert told(history).startswith(f"EngineDeadError|{role}|")


def test_a_silent_exit_before_anything_else_is_a_failed_start(world: RealWorld) -> None:
    history, verdict = run(world, plan(Exit(Instant("dp0.rank1", "start"), 0)))
    assert verdict.ok, verdict
    assert told(history).startswith("StartupError|dp0.rank1|")


# restart


@pytest.mark.parametrize("at", ["dp0.rank0:output.send[outputs]#2:after", "dp0.rank1:tp.all_reduce#7:before"])
def test_a_rank_that_comes_back_in_its_own_place_neither_joins_nor_stays(world: RealWorld, at: str) -> None:
    history, verdict = run(world, plan(Restart(Instant.parse(at), to="dp0.rank1")))
    assert verdict.ok, verdict
    assert (verdict.refused, fired(verdict)) == (1, [1])
    assert told(history).startswith("EngineDeadError|dp0.rank1|killed by SIGKILL")
    first, second = history.process("dp0.rank1"), history.process(f"dp0.rank1{AGAIN}")
    assert first is not None
    assert second is not None
    assert (first.status, second.ended_by) == (-signal.SIGKILL, "itself")
    assert first.pid != second.pid
    assert first.ended is not None
    assert first.ended < second.started
    assert list(history.of(second.role, "relay.recv")) == []
    assert history.residue == ()


def test_a_run_is_not_over_while_a_process_is_still_to_begin_in_the_place_of_another() -> None:
    """At the very end of a run nothing else lives that would keep it open until the second process has begun."""
    said: list[wire.Message] = []
    restart = Restart(Instant.parse("dp0.rank1:relay.recv[step]#1:after"))
    memory = os.memfd_create("flags")
    os.ftruncate(memory, BYTES)
    deeds = Deeds(plan(restart), said.append, Flags(memory, 0))
    calls = deeds.hand_over()
    processes = {"dp0.rank1": Process("dp0.rank1", 1, 0)}
    bearing = [deeds.bearing]
    try:
        os.write(calls, (0).to_bytes(4, "little"))
        deeds.act(processes)
        bearing.append(deeds.bearing)
        processes["dp0.rank1"] = Process("dp0.rank1", 1, 0, 5, -signal.SIGKILL)
        deeds.act(processes)
        bearing.append(deeds.bearing)
        assert said[-1] == wire.Again("dp0.rank1", f"dp0.rank1{AGAIN}")
        processes[f"dp0.rank1{AGAIN}"] = Process(f"dp0.rank1{AGAIN}", 2, 6)
        bearing.append(deeds.bearing)
    finally:
        deeds.close()
        os.close(calls)
        os.close(memory)
    assert bearing == [False, True, True, False], "asked for nothing, to die, told to begin again, has begun"


def test_the_client_cannot_be_started_again() -> None:
    assert "cannot be started again" in (Restart(SECOND_STEP, to="client").complaint() or "")


# clock


@pytest.mark.parametrize("seconds", [0.4, -0.4, -3600.0])
@pytest.mark.parametrize("role", ["dp0.rank0", "dp0.rank1", "client"])
def test_clocks_that_jump_by_less_than_a_deadline_are_served(world: RealWorld, role: str, seconds: float) -> None:
    at = SECOND_STEP if role != "client" else Instant("client", "call(engine.llm:AsyncLLM.generate)", side="before")
    history, verdict = run(world, probing(Clock(Instant(role, at.site, n=at.n, side="before"), seconds)))
    assert verdict.ok, verdict
    assert (verdict.served, fired(verdict)) == (1, [1])
    if role != "client":
        before, *_, after = [event.value - event.t for event in history.of(role, "probe.clock")]
        assert abs((after - before) / 1e9 - seconds) < 0.2


def test_clocks_that_jump_over_a_deadline_end_in_an_error_or_are_served_but_never_wedge(world: RealWorld) -> None:
    limit = timeouts_of(plan()).step or 0.0
    history, verdict = run(world, plan(Clock(SECOND_STEP, limit + 2.0)))
    assert verdict.ok, verdict
    assert fired(verdict) == [1]
    if verdict.refused:
        assert told(history).startswith("EngineDeadError|dp0.rank1|")


# limits


def test_a_process_without_descriptors_can_open_nothing_until_all_is_healed(world: RealWorld) -> None:
    history, verdict = run(world, probing(Descriptors(SECOND_STEP)))
    assert verdict.ok, verdict
    assert fired(verdict) == [1]
    openable = probed(before_demand(history), "dp0.rank1", "open")
    assert openable[0] == 1
    assert openable[-1] == 0
    assert probed(history, "dp0.rank1", "open")[-1] == 1
    healthy, control = run(world, probing())
    assert control.ok
    assert set(probed(healthy, "dp0.rank1", "open")) == {1}


def test_the_client_without_descriptors_says_so_or_serves(world: RealWorld) -> None:
    at = Instant("client", "call(engine.llm:AsyncLLM.generate)", side="before")
    _, verdict = run(world, plan(Descriptors(at, left=1)))
    assert verdict.ok, verdict
    assert fired(verdict) == [1]


def test_a_rank_without_descriptors_from_its_start_fails_the_start_by_its_name(world: RealWorld) -> None:
    history, verdict = run(world, plan(Descriptors(Instant("dp0.rank1", "start"), left=2)))
    assert verdict.ok, verdict
    assert told(history).startswith("StartupError|dp0.rank1|")


def test_a_process_without_memory_cannot_allocate_until_all_is_healed(world: RealWorld) -> None:
    history, verdict = run(world, probing(Memory(SECOND_STEP, 8)))
    assert verdict.ok, verdict
    allocatable = probed(before_demand(history), "dp0.rank1", "memory")
    assert allocatable[0] == 1
    assert allocatable[-1] == 0
    assert probed(history, "dp0.rank1", "memory")[-1] == 1
    healthy, _ = run(world, probing())
    assert set(probed(healthy, "dp0.rank1", "memory")) == {1}


def test_limits_are_those_of_the_harness_again_once_healed(world: RealWorld) -> None:
    """The client ends the run, so that the rank that has nothing left is healed before it leaves."""
    at = Instant("client", "call(engine.client.base:MPClient.shutdown)", side="before")
    faults: list[Fault] = [Descriptors(at), Memory(at, 4)]
    history, verdict = run(world, plan(*faults, workload=Workload((Request((1, 2, 3), 2),))))
    assert verdict.ok, verdict
    assert fired(verdict) == [1, 1]
    assert history.residue == ()


def test_a_limit_of_another_process_can_be_restored() -> None:
    original = resource.getrlimit(resource.RLIMIT_NOFILE)
    pid = os.fork()
    if pid == 0:
        try:
            Descriptors(SECOND_STEP).lower(3)
            while resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 3:
                time.sleep(0.005)
        finally:
            os._exit(int(resource.getrlimit(resource.RLIMIT_NOFILE) != original))
    while resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] != 3:
        time.sleep(0.005)
    Descriptors(SECOND_STEP).restore(pid)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == original


def probing(*faults: Fault) -> Plan:
    return plan(*faults, engine=EngineOptions(plugins=(PROBE,)))
