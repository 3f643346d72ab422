"""Frame faults on every link of a real engine: what its user is told, and the same engine with healthy links."""

from __future__ import annotations

import itertools
from typing import Literal

import msgspec
import pytest

from harness.faults import (
    Corrupt,
    Drop,
    Duplicate,
    Fault,
    Foreign,
    Hold,
    Lag,
    Raise,
    Refuse,
    Reorder,
    Reset,
    Slow,
    Stall,
    Truncate,
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
LEAD, OTHER = "dp0.rank0", "dp0.rank1"
SECOND = 1_000_000_000


def plan(*faults: Fault, relay: str = "pushpull", tp: int = 2, **fields: object) -> Plan:
    made = Plan(topology=Topology(tp=tp), engine=EngineOptions(relay=relay), faults=faults)
    return msgspec.structs.replace(made, **fields)


def run(world: RealWorld, what: Plan) -> tuple[History, Verdict]:
    get("engine").check(what)
    history = world.run(what)
    return history, judge(history)


def told(history: History) -> str:
    """What the client was told of the end: type, culprit, cause."""
    ends = [event.text for event in history.of("client") if event.kind in ("failed", "EngineDeadError")]
    assert ends
    return ends[0]


def fired(verdict: Verdict) -> list[int]:
    return [count.fired for count in verdict.faults]


def starts_in(history: History) -> float:
    """Seconds from the begin of the start-up to its end, whichever that was."""
    begun, *_, over = [event.t for event in history.of("client", "startup")]
    return (over - begun) / SECOND


def answers_in(history: History) -> float:
    """Seconds from the first request to the last token."""
    (sent, *_), (*_, last) = history.of("client", "request.sent"), history.of("client", "request.token")
    return (last.t - sent.t) / SECOND


# healthy


@pytest.mark.parametrize("tp", [1, 2])
def test_a_healthy_engine_is_served_with_every_link_observed(world: RealWorld, tp: int) -> None:
    links = ("input", "output", "startup", *(("relay", "control") if tp > 1 else ()))
    history, verdict = run(world, plan(tp=tp, observe=links))
    assert verdict.ok, verdict
    assert verdict.served == 1
    assert {process.status for process in history.processes} == {0}
    seen = {(frame.link, frame.direction, frame.kind) for frame in history.frames if not frame.kind.isupper()}
    assert {
        ("startup", "to_binder", "hello"),
        ("startup", "to_connector", "init"),
        ("startup", "to_binder", "ready"),
        ("input", "to_binder", "welcome"),
        ("input", "to_connector", "add"),
        ("output", "to_binder", "outputs"),
    } <= seen
    assert {frame.link for frame in history.frames} == set(links)
    assert {frame.fate for frame in history.frames} == {"passed"}
    numbers = [frame.number for frame in history.frames if frame.kind == "outputs"]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 4, "four of the request, and those of the demand at the end"


@pytest.mark.parametrize("link", ["input", "output", "startup"])
def test_a_healthy_engine_is_served_with_one_link_observed(world: RealWorld, link: str) -> None:
    history, verdict = run(world, plan(observe=(link,)))
    assert (verdict.ok, verdict.served) == (True, 1)
    assert {(frame.link, frame.connector) for frame in history.frames} == {(link, LEAD)}


# between rank 0 and the client, in service


def test_a_lost_output_is_an_error_for_the_client(world: RealWorld) -> None:
    history, verdict = run(world, plan(Drop("output", "outputs", LEAD, nth=2)))
    assert verdict.ok, verdict
    assert (verdict.refused, fired(verdict)) == (1, [1])
    assert told(history) == f"EngineDeadError|{LEAD}|sent output 3 after 1, expected 2"


def test_a_lost_last_output_is_noticed_though_nothing_comes_behind_it(world: RealWorld) -> None:
    limit = timeouts_of(plan()).step or 0.0
    history, verdict = run(world, plan(Drop("output", "outputs", LEAD, nth=4)))
    assert verdict.ok, verdict
    assert (verdict.refused, fired(verdict)) == (1, [1])
    assert told(history) == f"EngineDeadError|{LEAD}|sent output 4, and only 3 have arrived"
    assert verdict.seconds < limit + 3


def test_a_lost_dead_frame_is_made_up_for_by_the_process_s_death(world: RealWorld) -> None:
    dies = Raise(Instant.parse(f"{LEAD}:output.send[outputs]#3:after"))
    told_by_both = []
    for faults in ((dies, Drop("output", "dead", LEAD)), (dies,)):
        history, verdict = run(world, plan(*faults, observe=("output",)))
        assert verdict.ok, verdict
        assert fired(verdict) == [1] * len(faults)
        told_by_both.append(told(history))
        fates = [frame.fate for frame in history.frames if frame.kind == "dead"]
        assert fates == (["dropped"] if len(faults) == 2 else ["passed"])
    assert told_by_both[0] == told_by_both[1]
    assert told_by_both[0].startswith(f"EngineDeadError|{LEAD}|InjectedError")


@pytest.mark.parametrize("kind", [Drop, Hold, Stall, Reset], ids=lambda kind: kind.__name__)
def test_a_request_that_does_not_arrive_is_noticed_in_time(world: RealWorld, kind: type[Drop | Hold]) -> None:
    limit = timeouts_of(plan()).step or 0.0
    history, verdict = run(world, plan(kind("input", "add", LEAD)))
    assert verdict.ok, verdict
    assert (verdict.refused, fired(verdict)) == (1, [1])
    assert told(history).startswith(f"EngineDeadError|{LEAD}|message 1 was sent on input and only 0 were taken")
    assert verdict.seconds < limit + 4


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Duplicate("input", "add", LEAD), "InputError: input message 1 after 1, expected 2"),
        (Truncate("input", "add", LEAD, keep=9), "InputError: input message of type 00 cannot be read"),
        (Corrupt("input", "add", LEAD, offset=0), "InputError: input message of type 00 cannot be read"),
        (Foreign("input", "add", LEAD, data="07"), "InputError: "),
        (Duplicate("output", "outputs", LEAD), "sent output 1 after 1, expected 2"),
        (Reorder("output", "outputs", LEAD, nth=2), "sent output 3 after 1, expected 2"),
        (Truncate("output", "outputs", LEAD, nth=2, keep=3), "sent an output frame that cannot be read"),
        (Corrupt("output", "outputs", LEAD, offset=0), "sent an output frame that cannot be read"),
        (Foreign("output", "outputs", LEAD, data="c1"), "sent an output frame that cannot be read"),
    ],
    ids=lambda value: f"{type(value).__name__} {value.frame}" if not isinstance(value, str) else "",
)
def test_a_frame_that_cannot_be_right_ends_in_an_error_that_names_rank_0(
    world: RealWorld, fault: Fault, words: str
) -> None:
    history, verdict = run(world, plan(fault))
    assert verdict.ok, verdict
    assert (verdict.refused, fired(verdict)) == (1, [1])
    assert told(history).startswith(f"EngineDeadError|{LEAD}|{words}")


def test_a_match_chooses_the_frames_of_one_request(world: RealWorld) -> None:
    requests = Workload((Request((1, 2, 3)), Request((5, 6), 2, "previous")))
    history, verdict = run(world, plan(Drop("input", "add", LEAD, match="r1"), workload=requests))
    assert verdict.ok, verdict
    assert (verdict.served, verdict.refused, fired(verdict)) == (1, 1, [1])
    assert "message 2 was sent on input and only 1 were taken" in told(history)


# the start


@pytest.mark.parametrize(
    "fault",
    [Hold("startup", "ready", LEAD), Drop("startup", "ready", LEAD), Drop("input", "welcome", LEAD)],
    ids=str,
)
def test_a_start_whose_last_words_do_not_arrive_ends_at_its_deadline_and_names_rank_0(
    world: RealWorld, fault: Fault
) -> None:
    limit = timeouts_of(plan()).startup
    history, verdict = run(world, plan(fault))
    assert verdict.ok, verdict
    assert (verdict.refused, fired(verdict)) == (1, [1])
    assert told(history) == f"StartupError|{LEAD}|not ready within {limit:g} s"
    assert limit <= starts_in(history) < limit + 2


@pytest.mark.parametrize("frame", ["hello", "init"])
def test_a_start_whose_first_words_do_not_arrive_ends_at_the_deadline_of_the_handshake(
    world: RealWorld, frame: str
) -> None:
    limit = timeouts_of(plan()).handshake
    history, verdict = run(world, plan(Drop("startup", frame, LEAD)))
    assert verdict.ok, verdict
    assert (verdict.refused, fired(verdict)) == (1, [1])
    assert told(history).startswith(f"StartupError|client|{LEAD} waited for it: hello: no INIT came")
    assert limit <= starts_in(history) < limit + 2


@pytest.mark.parametrize(("link", "frame"), [("startup", "hello"), ("startup", "ready"), ("input", "welcome")])
@pytest.mark.parametrize("kind", [Duplicate, Truncate], ids=lambda kind: kind.__name__)
def test_a_start_with_a_wrong_frame_is_refused(
    world: RealWorld, link: str, frame: str, kind: type[Duplicate | Truncate]
) -> None:
    history, verdict = run(world, plan(kind(link, frame, LEAD)))
    assert verdict.ok, verdict
    assert (verdict.refused, fired(verdict)) == (1, [1])
    assert told(history).startswith(f"StartupError|{LEAD}|")
    assert starts_in(history) < timeouts_of(plan()).startup


@pytest.mark.parametrize(
    ("link", "frame", "words"),
    [
        ("startup", "hello", "Hello on startup is of another run"),
        ("startup", "init", "HandshakeError: startup: INIT of foreign epoch"),
        ("startup", "ready", "EngineReady on startup is of another run"),
        ("input", "welcome", "greeted with"),
    ],
)
def test_a_start_with_a_frame_of_another_run_is_refused(world: RealWorld, link: str, frame: str, words: str) -> None:
    history, verdict = run(world, plan(Foreign(link, frame, LEAD)))
    assert verdict.ok, verdict
    assert (verdict.refused, fired(verdict)) == (1, [1])
    assert told(history).startswith(f"StartupError|{LEAD}|{words}")


@pytest.mark.parametrize("link", ["startup", "input", "output"])
def test_rank_0_waits_for_a_client_that_listens_a_little_later(world: RealWorld, link: str) -> None:
    history, verdict = run(world, plan(Refuse(link, "connect", LEAD, or_after=0.4)))
    assert verdict.ok, verdict
    assert (verdict.served, fired(verdict)) == (1, [1])
    began = history.process("client")
    ready = next(event.t for event in history.of("client", "startup") if event.kind == "ready")
    first = min(frame.t for frame in history.frames)
    assert began is not None
    assert first - began.started >= 0.3 * SECOND
    assert link == "output" or ready > first


def test_rank_0_does_not_wait_for_ever_for_a_client_that_does_not_listen(world: RealWorld) -> None:
    history, verdict = run(world, plan(Refuse("startup", "connect", LEAD)))
    assert verdict.ok, verdict
    assert told(history).startswith("StartupError|client|")
    assert history.frames == ()


# time and order


@pytest.mark.parametrize("relay", SAFE)
def test_a_link_with_latency_slows_the_answer_and_is_served(world: RealWorld, relay: str) -> None:
    late, verdict = run(world, plan(Lag("relay", "step", OTHER, count=4, seconds=0.2), relay=relay))
    assert verdict.ok, verdict
    assert (verdict.served, fired(verdict)) == (1, [4])
    assert answers_in(late) >= 0.75
    healthy, control = run(world, plan(relay=relay, observe=("relay",)))
    assert control.ok
    assert answers_in(healthy) < 0.75


@pytest.mark.parametrize("relay", SAFE)
def test_a_late_frame_beyond_the_deadline_names_the_rank_that_did_not_get_it(world: RealWorld, relay: str) -> None:
    history, verdict = run(world, plan(Lag("relay", "step", OTHER, nth=2, seconds=4), relay=relay))
    assert verdict.ok, verdict
    assert (verdict.refused, fired(verdict)) == (1, [1])
    assert told(history).startswith(f"EngineDeadError|{OTHER}|")


@pytest.mark.parametrize("relay", [*SAFE, "unsynchronised"])
def test_a_step_that_is_overtaken_is_an_error_where_frames_are_numbered_and_a_wedge_where_not(
    world: RealWorld, relay: str
) -> None:
    _, verdict = run(world, plan(Reorder("relay", "step", OTHER), relay=relay))
    assert fired(verdict) == [1]
    if relay == "unsynchronised":
        assert (verdict.verdict, verdict.grade) == ("wedged", "proved")
        assert verdict.blame is not None
        assert verdict.blame.sentence == "Rank 0 published frame 1, and it is held on its way to rank 1."
    else:
        assert verdict.ok, verdict
        assert verdict.refused == 1


@pytest.mark.parametrize("relay", SAFE)
@pytest.mark.parametrize("or_after", [0.4, None])
def test_a_relay_that_stalls_is_served_if_it_ends_and_an_error_if_not(
    world: RealWorld, relay: str, or_after: float | None
) -> None:
    history, verdict = run(world, plan(Stall("relay", "step", OTHER, 2, None, or_after), relay=relay))
    assert verdict.ok, verdict
    assert fired(verdict) == [1]
    if or_after is None:
        assert told(history).startswith(f"EngineDeadError|{OTHER}|")
        return
    assert verdict.served == 1
    times = [event.t for event in history.of(OTHER)]
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) >= 0.9 * or_after * SECOND


@pytest.mark.parametrize("rate", [2000, 10])
def test_a_slow_relay_is_served_as_long_as_steps_come_in_time(world: RealWorld, rate: int) -> None:
    history, verdict = run(world, plan(Slow("relay", "step", OTHER, rate=rate)))
    assert verdict.ok, verdict
    assert fired(verdict) == [1]
    if rate == 2000:
        assert verdict.served == 1
        carried = sum(f.size for f in history.frames if f.kind == "step" and f.connector == OTHER)
        first = next(f.t for f in history.frames if f.kind == "step")
        last = [e.t for e in history.of(OTHER, "relay.recv", "after") if e.kind == "step"][-1]
        assert (last - first) / SECOND >= 0.5 * carried / rate
    else:
        assert told(history).startswith(f"EngineDeadError|{OTHER}|")


@pytest.mark.parametrize("relay", SAFE)
def test_a_rank_waits_for_a_rank_0_that_listens_a_little_later(world: RealWorld, relay: str) -> None:
    _, verdict = run(world, plan(Refuse("relay", "connect", OTHER, or_after=0.4), relay=relay))
    assert verdict.ok, verdict
    assert (verdict.served, fired(verdict)) == (1, [1])


@pytest.mark.parametrize("relay", SAFE)
def test_a_rank_that_cannot_connect_any_more_is_named(world: RealWorld, relay: str) -> None:
    history, verdict = run(world, plan(Refuse("relay", "step", OTHER, 2), relay=relay))
    assert verdict.ok, verdict
    assert (verdict.refused, fired(verdict)) == (1, [1])
    assert told(history).startswith(f"EngineDeadError|{OTHER}|")
    assert {frame.connection for frame in history.frames if frame.connector == OTHER} == {1}


@pytest.mark.parametrize("direction", ["either", "to_binder", "to_connector"])
def test_a_join_is_the_victim_s_own_unless_a_plan_names_the_other_direction(
    world: RealWorld, direction: Literal["either", "to_binder", "to_connector"]
) -> None:
    late = Lag("relay", "READY", OTHER, seconds=0.3, direction=direction)
    history, verdict = run(world, plan(late))
    assert verdict.ok, verdict
    assert (verdict.served, fired(verdict)) == (1, [1])
    held = [(frame.kind, frame.direction) for frame in history.frames if frame.fate == "held"]
    assert held[0] == ("READY", "to_connector" if direction == "to_connector" else "to_binder")
    caught = next(frame.t for frame in history.frames if frame.fate == "held")
    came = next(event.t for event in history.of(OTHER, "relay.recv", "after") if event.kind == "go")
    assert came - caught >= 0.29 * SECOND


@pytest.mark.parametrize("relay", SAFE)
def test_a_truncated_step_is_refused_by_the_rank_that_got_it(world: RealWorld, relay: str) -> None:
    history, verdict = run(world, plan(Truncate("relay", "step", OTHER, nth=2, keep=10), relay=relay))
    assert verdict.ok, verdict
    assert (verdict.refused, fired(verdict)) == (1, [1])
    assert told(history).startswith(f"EngineDeadError|{OTHER}|RelayError: relay frame of 10 bytes")


# what cannot be done


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (Truncate("relay", "join", OTHER), "'join' is the command READY; a truncate join .* needs a message"),
        (Drop("input", "add", OTHER), "'dp0.rank1' does not connect to input; there is dp0.rank0"),
        (Drop("output", "step", LEAD), "no frame 'step' on output; there is outputs, dead"),
        (Drop("startup", "connect", LEAD), "no frame 'connect' on startup; there is hello, init, ready"),
        (Refuse("startup", "connected", LEAD), "no frame 'connected' on startup; there is .*, connect"),
    ],
    ids=str,
)
def test_a_frame_fault_that_no_link_can_bear_is_refused(wrong: Fault, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        get("engine").check(plan(wrong))
