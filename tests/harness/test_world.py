"""Plans on real processes: what is broken shows from outside, what is healthy passes, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path

import msgspec
import psutil
import pytest

from harness import history as histories
from harness.faults import Delay, Drop, Fault, Hold, Kill
from harness.history import History
from harness.instant import Instant
from harness.interpreter import python
from harness.judge import judge
from harness.plan import EngineOptions, Plan, PlanError, Request, Topology, Workload
from harness.proxy.handle import Proxy, ProxyError
from harness.scenario import resolve
from harness.search import sites
from harness.targets import get
from harness.trial import trials
from harness.verdict import Verdict
from harness.world.real import RealWorld, WorldError
from tests.harness.census import command_of, left_of
from tests.harness.copies import STRAY

SAFE = ("pushpull", "subscribed", "handshake")
STRATEGIES = (*SAFE, "unsynchronised")
FIRST_STEP_SENT = Instant.parse("dp0.rank0:relay.send[step]#1:after")
LATE_JOIN = Hold(link="relay", frame="join", victim="dp0.rank1", until=FIRST_STEP_SENT, or_after=0.9)


def plan(*faults: Fault, relay: str = "handshake", tp: int = 2, **fields: object) -> Plan:
    options = EngineOptions(relay=relay, plugins=("tests.harness.copies",) if relay == "hearsay" else ())
    made = Plan(topology=Topology(tp=tp), engine=options, faults=faults)
    return msgspec.structs.replace(made, **fields)


def run(world: RealWorld, what: Plan) -> tuple[History, Verdict]:
    history = world.run(what)
    return history, judge(history)


def mine() -> list[str]:
    """Every process that descends from this one, and every folder of a world that this process owns."""
    return [f"{child.pid} {child.name()}" for child in psutil.Process().children(recursive=True)]


@pytest.mark.parametrize(("tp", "relay"), [(1, "pushpull"), (3, "pushpull"), *product((2, 4), STRATEGIES)])
def test_a_healthy_engine_passes_and_leaves_nothing(world: RealWorld, tp: int, relay: str) -> None:
    requests = (Request((1, 2, 3)), Request((5,), 2), Request((9, 8, 7, 6), 3, "previous"))
    history, verdict = run(world, plan(tp=tp, relay=relay, workload=Workload(requests)))
    assert verdict.ok, verdict
    assert verdict.served == 3
    assert [process.status for process in history.processes] == [0] * (1 + tp)
    assert {process.ended_by for process in history.processes} == {"itself"}
    assert all(not psutil.pid_exists(process.pid) for process in history.processes)
    sites = {event.site for event in history.events}
    assert ("relay.send" in sites, "control.bind" in sites) == (tp > 1, tp > 1)


@pytest.mark.parametrize("relay", SAFE)
def test_an_instant_that_plans_draw_is_passed_in_every_run(world: RealWorld, relay: str) -> None:
    steps = 2
    history, _ = run(world, plan(tp=3, relay=relay, workload=Workload((Request((1,), steps),))))
    passed = {
        Instant(event.role, event.site, kind, event.n, event.side)
        for event in history.events
        if event.side != "mark"
        for kind in {event.kind or None, None}
    } | {Instant(event.role, event.site) for event in history.of(side="mark") if event.site == "start"}
    wanted = {at for at in sites.instants(3, relay, steps) if at.kind or at.site != "output.send"}
    assert {str(at) for at in wanted - passed} == set()


@pytest.mark.parametrize("relay", SAFE)
def test_the_proxy_carries_both_ways_of_the_ranks_and_names_every_frame(world: RealWorld, relay: str) -> None:
    history, verdict = run(world, plan(tp=3, relay=relay, observe=("relay", "control")))
    assert verdict.ok, verdict
    seen = {(frame.link, frame.connector, frame.kind) for frame in history.frames}
    assert {connector for _, connector, _ in seen} == {"dp0.rank1", "dp0.rank2"}
    for link, kind in sites.frames(relay):
        word = get("engine").frame(link, kind, history.plan)
        assert {(link, rank, word) for rank in ("dp0.rank1", "dp0.rank2")} <= seen
    assert "?" not in {kind for _, _, kind in seen}
    assert {frame.fate for frame in history.frames} == {"passed"}


@pytest.mark.parametrize("relay", ["unsynchronised", "hearsay"])
def test_the_lost_first_request_is_proved_whatever_the_strategy_is_called(world: RealWorld, relay: str) -> None:
    history, verdict = run(world, plan(LATE_JOIN, relay=relay))
    assert verdict.word == "wedged (proved)"
    assert verdict.exit_code == 1
    assert verdict.blame is not None
    assert verdict.proof is not None
    assert verdict.blame.sentence == (
        "Rank 0 published frame 1 before rank 1's subscription was registered, so it was dropped."
    )
    waits = {(edge.role, edge.waits_for, edge.ended_by) for edge in verdict.blame.waits}
    assert ("dp0.rank1", "frame 1 on relay", ("dp0.rank0",)) in waits
    assert ("dp0.rank0", "tp.broadcast #1", ("dp0.rank1",)) in waits
    assert verdict.blame.owed == ("request r0 to client",)
    assert 0 < verdict.proof.after_progress_ms < 1000
    # On a busy machine the join is sometimes late by itself, and its hold has ended before it comes.
    assert [count.reached for count in verdict.faults] == [1]
    assert history.ended == "wedge"


def test_the_proof_follows_from_the_saved_history_alone(world: RealWorld) -> None:
    history, verdict = run(world, plan(LATE_JOIN, relay="unsynchronised"))
    again = judge(histories.load(histories.dump(history)))
    assert again == verdict
    assert judge(msgspec.structs.replace(history, look=None)).proof is None


def test_a_frame_that_only_comes_late_is_no_wedge(world: RealWorld) -> None:
    late = Hold(link="relay", frame="step", victim="dp0.rank1", or_after=2.0)
    history, verdict = run(world, plan(late, relay="unsynchronised"))
    assert verdict.ok, verdict
    assert [count.fired for count in verdict.faults] == [1]
    fates = [frame.fate for frame in history.frames if frame.kind == "step"]
    assert fates[:2] == ["held", "released"]


def test_a_dropped_frame_wedges_the_unsynchronised_relay_and_is_blamed(world: RealWorld) -> None:
    _, verdict = run(world, plan(Drop("relay", "step", "dp0.rank1"), relay="unsynchronised"))
    assert verdict.word == "wedged (proved)"
    assert verdict.blame is not None
    assert verdict.blame.sentence == "Rank 0 published frame 1, and it was dropped on its way to rank 1."


@pytest.mark.parametrize("relay", SAFE)
@pytest.mark.parametrize("tp", [2, 3])
def test_every_safe_strategy_serves_through_a_late_join(world: RealWorld, relay: str, tp: int) -> None:
    history, verdict = run(world, plan(LATE_JOIN, relay=relay, tp=tp))
    assert verdict.ok, verdict
    assert verdict.served == 1
    assert [count.fired for count in verdict.faults] == [1]
    held = [frame for frame in history.frames if frame.fate == "held"]
    assert held[0].kind == ("READY" if relay == "pushpull" else "SUBSCRIBE")


@pytest.mark.parametrize(
    ("relay", "link", "frame"),
    [
        ("handshake", "relay", "done"),
        ("handshake", "relay", "step"),
        ("pushpull", "relay", "go"),
        ("pushpull", "relay", "step"),
        ("pushpull", "control", "join"),
        ("subscribed", "relay", "go"),
        ("subscribed", "relay", "step"),
    ],
)
def test_a_dropped_frame_is_refused_with_a_typed_error(world: RealWorld, relay: str, link: str, frame: str) -> None:
    history, verdict = run(world, plan(Drop(link, frame, "dp0.rank1", nth=1), relay=relay))
    assert verdict.ok, verdict
    assert (verdict.served, verdict.refused) == (0, 1)
    assert [count.fired for count in verdict.faults] == [1]
    assert any(frame_.fate == "dropped" and frame_.kind == frame for frame_ in history.frames)


@pytest.mark.parametrize("at", ["relay.send[hello]#1:after", "relay.send[done]#1:before", "tp.all_reduce#3:after"])
def test_rank_0_killed_is_named_and_the_others_leave_for_it(world: RealWorld, at: str) -> None:
    history, verdict = run(world, plan(Kill(Instant.parse(f"dp0.rank0:{at}")), tp=3))
    assert verdict.ok, verdict
    assert verdict.refused == 1
    statuses = {process.role: process.status for process in history.processes}
    assert statuses == {"client": 0, "dp0.rank0": -9, "dp0.rank1": 11, "dp0.rank2": 11}
    assert all((process.ended or 0) < history.cleanup for process in history.processes)
    errors = [event.text for event in history.of("client") if event.kind in ("failed", "EngineDeadError")]
    assert errors
    assert all("|dp0.rank0|" in text for text in errors if "|" in text)


def test_a_delay_is_seen_as_time_that_passes(world: RealWorld) -> None:
    history, verdict = run(world, plan(Delay(Instant.parse("dp0.rank1:relay.connect#1:before"), 0.4)))
    assert verdict.ok, verdict
    before = next(history.of("dp0.rank1", "relay.connect", "before"))
    after = next(history.of("dp0.rank1", "relay.connect", "after"))
    assert after.t - before.t >= 400_000_000


def test_an_instant_that_is_never_reached_makes_the_run_vacuous(world: RealWorld) -> None:
    _, verdict = run(world, plan(Kill(Instant.parse("dp0.rank0:relay.send[step]#99:after"))))
    assert (verdict.word, verdict.exit_code) == ("vacuous", 3)
    assert [(count.armed, count.reached, count.fired) for count in verdict.faults] == [(1, 0, 0)]


def test_the_client_program_killed_leaves_no_rank_behind(world: RealWorld) -> None:
    history, verdict = run(world, plan(Kill(Instant.parse("client:output.recv[outputs]#1:after"))))
    assert verdict.ok, verdict
    assert {process.role: process.status for process in history.processes} == {
        "client": -9,
        "dp0.rank0": 13,
        "dp0.rank1": 13,
    }


def test_a_process_that_a_rank_started_on_its_own_is_found_and_ended(world: RealWorld) -> None:
    options = EngineOptions(relay=STRAY, plugins=("tests.harness.copies",))
    history, verdict = run(world, plan(engine=options))
    assert history.residue == ("process sleep",)
    assert [finding.sentence for finding in verdict.findings] == ["the run left process sleep behind"]
    assert all("sleep" not in name for name in mine())


def test_spawned_processes_tell_the_same_story_as_forked_ones(world: RealWorld) -> None:
    spawned = plan(LATE_JOIN, relay="unsynchronised", topology=Topology(start="spawn"))
    options = msgspec.structs.replace(spawned.engine, timeouts="default")
    _, verdict = run(world, msgspec.structs.replace(spawned, engine=options, budget=90.0))
    _, forked = run(world, plan(LATE_JOIN, relay="unsynchronised"))
    assert verdict.word == forked.word == "wedged (proved)"
    assert verdict.fingerprint == forked.fingerprint


def test_several_lanes_run_plans_at_once_and_return_all_of_them(world: RealWorld) -> None:
    wanted = [plan(seed=seed) for seed in range(8)]
    done = list(world.run_many(iter(wanted)))
    assert sorted(p.seed for p, _ in done) == list(range(8))
    assert all(judge(history).ok for _, history in done)


def test_many_lanes_come_to_the_same_verdicts_as_one() -> None:
    """Wedges, refusals and what is served, all at once on a machine that is busy with the others.

    Without a fault the unsynchronised relay may lose its first frame or not, so there it is held.
    """
    kinds: list[Fault] = [LATE_JOIN, Drop("relay", "step", "dp0.rank1")]
    death = Kill(Instant.parse("dp0.rank0:output.send#1:after"))
    wanted = [
        *(plan(kind, relay="unsynchronised") for kind in kinds),
        *(plan(kind, relay="pushpull") for kind in (*kinds, death)),
        plan(relay="pushpull"),
    ]

    def verdicts(lanes: int) -> dict[str, set[tuple[str, str]]]:
        found: dict[str, set[tuple[str, str]]] = {}
        with RealWorld(lanes=lanes) as opened, closing(trials(opened, wanted * 2)) as runs:
            for trial in runs:
                verdict = trial.verdict
                found.setdefault(trial.plan.digest, set()).add((verdict.word, verdict.fingerprint))
        return found

    one = verdicts(1)
    assert {word for seen in one.values() for word, _ in seen} == {"passed", "wedged (proved)"}
    assert all(len(seen) == 1 for seen in one.values())
    assert verdicts(RealWorld.default_lanes()) == one


def test_a_plan_that_the_target_cannot_run_is_refused_before_anything_starts(world: RealWorld) -> None:
    for wrong, words in (
        (plan(relay="nosuch"), "engine.relay: got 'nosuch'"),
        (plan(Drop("lifeline", "stop", "dp0.rank0")), "no link 'lifeline' has a proxy"),
        (plan(Drop("relay", "dne", "dp0.rank1")), "no frame 'dne' on relay"),
        (plan(Drop("relay", "done", "dp0.rank0")), "does not connect to relay"),
    ):
        with pytest.raises(PlanError, match=words):
            world.run(wrong)


def test_a_world_that_is_closed_runs_nothing_and_leaves_nothing() -> None:
    before = mine()
    folders = set(Path(tempfile.gettempdir()).glob("nowedge-world-*"))
    with RealWorld(lanes=1) as opened:
        assert judge(opened.run(plan(LATE_JOIN))).ok
    assert mine() == before
    assert set(Path(tempfile.gettempdir()).glob("nowedge-world-*")) <= folders
    with pytest.raises(WorldError, match="closed"):
        opened.run(plan())


_ABANDONED = """
import sys, threading
from harness.plan import EngineOptions, Plan
from harness.world.real import RealWorld
from tests.harness.test_world import LATE_JOIN
world = RealWorld(lanes=2)
world.run(Plan())
print("running", flush=True)
def forever(relay):
    while True:
        world.run(Plan(engine=EngineOptions(relay=relay), faults=(LATE_JOIN,)))
threading.Thread(target=forever, args=("unsynchronised",), daemon=True).start()
forever("handshake")
"""


@pytest.fixture
def abandoned() -> Iterator[subprocess.Popen[str]]:
    """A harness process that runs plans for ever, wedged ones among them."""
    command = python("runpy")
    command[-1] = command[-1].split("runpy.run_module")[0] + f"exec({_ABANDONED!r})"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("delay", [0.1, 0.4])
def test_sigkill_of_the_harness_leaves_nothing(abandoned: subprocess.Popen[str], delay: float) -> None:
    assert abandoned.stdout is not None
    assert abandoned.stdout.readline() == "running\n"
    time.sleep(delay)  # the moment of death is what varies; nothing is waited for
    family = psutil.Process(abandoned.pid).children(recursive=True)
    folders = {path for path in Path(tempfile.gettempdir()).glob("nowedge-world-*") if _owned(path, family)}
    assert family
    assert folders
    os.kill(abandoned.pid, signal.SIGKILL)
    assert left_of(family, 10) == []
    limit = time.monotonic() + 10
    while any(path.exists() for path in folders) and time.monotonic() < limit:
        time.sleep(0.01)
    assert [path for path in folders if path.exists()] == []


def test_sigkill_of_the_harness_before_its_zygote_is_ready_leaves_nothing() -> None:
    command = python("runpy")
    code = "from harness.world.real import RealWorld; w = RealWorld(); print(w._base, flush=True); input()"
    command[-1] = command[-1].split("runpy.run_module")[0] + code
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    assert family
    assert left_of(family, 30) == []
    assert not folder.exists()


def _owned(folder: Path, family: list[psutil.Process]) -> bool:
    return any(str(folder) in command_of(process) for process in family)


def test_a_proxy_that_does_not_answer_is_told_as_such_and_replaced(
    world: RealWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = resolve("done-frame-dropped")[0].members[0].plan

    def silent(self: Proxy, *args: object, **kwargs: object) -> tuple[str, ...]:
        raise ProxyError("no answer within 60 s")

    with monkeypatch.context() as patch:
        patch.setattr(Proxy, "begin", silent)
        with pytest.raises(WorldError, match=r"^the proxy of a lane: no answer within 60 s$"):
            world.run(plan)
    assert judge(world.run(plan)).ok
