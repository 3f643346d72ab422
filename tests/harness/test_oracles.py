"""Each oracle finds what breaks its rule, says which event does, and is silent on a history that keeps it."""

from __future__ import annotations

import msgspec
import pytest

from harness.faults import Delay, Drop, Fault, Kill, Raise, Squat, Stop, Terminate
from harness.instant import Instant
from harness.oracles import ORACLES, check_all
from harness.targets import get
from tests.harness.synthetic import MS, call, history, mark, process, request

TARGET = get("engine")
KILL_RANK_0 = Kill(Instant.parse("dp0.rank0:relay.send[done]#1:before"))
DEAD = "EngineDeadError|dp0.rank0|killed by signal 9"
STARTED = [mark(1, "startup", "begin"), mark(5, "startup", "ready")]


def relay(*frames: tuple[str, int]) -> list[object]:
    """What rank 0 sent and rank 1 received on the relay, a frame each 10 ms."""
    sent = [call(10 * i + 9, "dp0.rank0", "relay.send", "before", kind, 1, n) for i, (kind, n) in enumerate(frames)]
    got = [call(10 * i + 10, "dp0.rank1", "relay.recv", "after", kind, 1, n) for i, (kind, n) in enumerate(frames)]
    return [*sent, *got]


def sentences(code: str, *args: object, **kwargs: object) -> list[str]:
    found = ORACLES[code](history(*args, **kwargs), TARGET)  # type: ignore[arg-type]
    assert all(finding.oracle == code for finding in found)
    return [finding.sentence for finding in found]


def test_a_healthy_history_breaks_no_rule() -> None:
    frames = relay(("hello", 1), ("hello", 2), ("done", 3), ("step", 1), ("step", 2), ("stop", 1))
    assert check_all(history([*STARTED, *frames, *request(100, (7, 8))]), TARGET) == ()  # type: ignore[list-item]


def test_term_finds_a_request_that_never_ends() -> None:
    assert sentences("TERM", [*STARTED, mark(10, "request.sent", number=0)]) == ["request r0 never ended"]


def test_term_finds_a_request_that_ends_twice() -> None:
    events = [*request(10, (7, 8)), mark(90, "request.failed", "EngineDeadError", 0, ok=False, text=DEAD)]
    assert sentences("TERM", events) == ["request r0 ended 2 times"]


def test_term_finds_a_client_program_that_broke_and_quotes_its_last_words() -> None:
    processes = [process("client", 70, log="Traceback\nValueError: no"), process("dp0.rank0"), process("dp0.rank1")]
    assert sentences("TERM", processes=processes) == ["the client program ended with status 70: ValueError: no"]


@pytest.mark.parametrize(
    ("frames", "wrong"),
    [
        ([("hello", 1), ("done", 2), ("hello", 3)], "a hello after the done frame"),
        ([("hello", 1), ("done", 2), ("done", 3)], "a second done frame"),
        ([("hello", 1), ("step", 1)], "step frame 1 before the done frame"),
        ([("hello", 1), ("done", 2), ("step", 1), ("step", 3)], "step frame 3 after step frame 1"),
        ([("hello", 1), ("done", 2), ("step", 1), ("step", 1)], "step frame 1 after step frame 1"),
    ],
)
def test_order_finds_a_rank_that_acts_on_a_wrong_frame(frames: list[tuple[str, int]], wrong: str) -> None:
    acted = call(500, "dp0.rank1", "tp.all_reduce", "before", number=9)
    assert sentences("ORDER", [*relay(*frames), acted]) == [f"dp0.rank1 acted on {wrong}"]


def test_order_accepts_a_rank_that_sees_a_gap_and_leaves() -> None:
    assert sentences("ORDER", relay(("hello", 1), ("done", 2), ("step", 1), ("step", 3))) == []


def test_order_finds_output_messages_out_of_order() -> None:
    outputs = [call(10 + n, "client", "output.recv", "after", "outputs", 1, n) for n in (1, 3)]
    assert sentences("ORDER", outputs) == ["output message 3 came where 2 was due"]
    refused = mark(20, "request.failed", "EngineDeadError", number=0, ok=False, text=DEAD)
    assert sentences("ORDER", [*outputs, refused]) == []
    read_on = call(15, "client", "output.recv", "after", "outputs", 1, 4)
    assert sentences("ORDER", [*outputs, read_on, refused]) == ["output message 3 came where 2 was due"]


def test_order_finds_tokens_after_the_end() -> None:
    late = mark(400, "request.token", number=0, value=9)
    assert sentences("ORDER", [*request(10, (7, 8)), late]) == ["request r0 got 1 tokens after its end"]


def test_gold_finds_tokens_that_are_not_the_reference() -> None:
    assert sentences("GOLD", request(10, (7, 9))) == ["request r0 got tokens [7, 9], the reference says [7, 8]"]
    assert sentences("GOLD", request(10, (7,)))


def test_gold_accepts_a_beginning_of_the_reference_before_an_error() -> None:
    events = request(10, (7,))[:-1]
    failed = mark(90, "request.failed", "EngineDeadError", 0, ok=False, text=DEAD)
    assert sentences("GOLD", [*events, failed]) == []


def failed(text: str = DEAD, kind: str = "EngineDeadError") -> list[object]:
    return [*STARTED, mark(10, "request.sent", number=0), mark(90, "request.failed", kind, 0, ok=False, text=text)]


SURVIVOR_LEFT = [process("client"), process("dp0.rank0", -9), process("dp0.rank1", 11)]


def test_death_accepts_an_error_that_names_the_dead_role() -> None:
    assert sentences("DEATH", failed(), faults=[KILL_RANK_0], fired=[1], processes=SURVIVOR_LEFT) == []


def test_death_finds_an_error_that_names_another_role() -> None:
    wrong = failed("EngineDeadError|dp0.rank1|exit code 11")
    found = sentences("DEATH", wrong, faults=[KILL_RANK_0], fired=[1], processes=SURVIVOR_LEFT)
    assert found == ["r0 ended with an error that names dp0.rank1, not dp0.rank0"]


def test_death_finds_an_untyped_error() -> None:
    wrong = failed("KeyError||'r0'", "KeyError")
    found = sentences("DEATH", wrong, faults=[KILL_RANK_0], fired=[1], processes=SURVIVOR_LEFT)
    assert found == ["r0 ended with KeyError: 'r0'"]


def test_death_finds_a_refusal_for_which_there_was_no_reason() -> None:
    mild = Delay(Instant.parse("dp0.rank1:start"), 0.1)
    for faults, fired in (([], []), ([mild], [1]), ([KILL_RANK_0], [0])):
        assert "although nothing fatal" in sentences("DEATH", failed(), faults=faults, fired=fired)[0]


def test_death_accepts_a_refusal_after_a_loss_and_wants_a_role_on_its_path() -> None:
    drop = Drop(link="relay", frame="step", victim="dp0.rank1")
    assert sentences("DEATH", failed(), faults=[drop], fired=[1]) == []
    stranger = failed("EngineDeadError|client|cancelled")
    assert "names client" in sentences("DEATH", stranger, faults=[drop], fired=[1])[0]


@pytest.mark.parametrize(("seconds", "words"), [(0.3, "although nothing fatal"), (3.0, ""), (None, "")])
def test_death_wants_a_short_stop_to_be_served_and_a_long_one_to_be_named(seconds: float | None, words: str) -> None:
    stop = Stop(Instant.parse("dp0.rank1:relay.recv[step]#1:after"), seconds)
    named = failed("EngineDeadError|dp0.rank1|dp0.rank0 waited for it")
    assert words in "".join(sentences("DEATH", named, faults=[stop], fired=[1]))
    assert bool(sentences("DEATH", named, faults=[stop], fired=[1])) == bool(words)
    if not words:
        assert "names dp0.rank0, not dp0.rank1" in sentences("DEATH", failed(), faults=[stop], fired=[1])[0]


def test_death_takes_every_rank_that_was_stopped_together_for_the_culprit() -> None:
    stop = Stop(Instant.parse("dp0.rank1:relay.recv[step]#1:after"), also=("dp0.rank0",))
    assert sentences("DEATH", failed(), faults=[stop], fired=[1]) == []


@pytest.mark.parametrize("fault", [Raise(KILL_RANK_0.at), Terminate(KILL_RANK_0.at)], ids=str)
def test_death_takes_a_raise_or_a_signal_for_fatal_if_the_role_left_for_it(fault: Fault) -> None:
    left = [process("client"), process("dp0.rank0", 10), process("dp0.rank1", 11)]
    assert sentences("DEATH", failed(), faults=[fault], fired=[1], processes=left) == []
    stays = [process("client"), process("dp0.rank0", 10), process("dp0.rank1", 0)]
    assert "did not leave" in sentences("DEATH", failed(), faults=[fault], fired=[1], processes=stays)[0]
    ignored = [process("client"), process("dp0.rank0", 0), process("dp0.rank1", 0)]
    assert sentences("DEATH", faults=[fault], fired=[1], processes=ignored) == []


def test_death_lets_any_rank_find_the_squatter() -> None:
    squat = Squat(Instant.parse("dp0.rank0:relay.bind#1:after"))
    for role in ("dp0.rank0", "dp0.rank1"):
        assert sentences("DEATH", failed(f"EngineDeadError|{role}|no hello"), faults=[squat], fired=[1]) == []


def test_death_finds_an_error_that_is_not_latched() -> None:
    events = [*failed(), mark(95, "latched", "no error", ok=False, text="a call succeeded")]
    found = sentences("DEATH", events, faults=[KILL_RANK_0], fired=[1], processes=SURVIVOR_LEFT)
    assert found == ["a call after the death ended differently: no error: a call succeeded"]


@pytest.mark.parametrize(("status", "ended_by"), [(0, "itself"), (10, "itself"), (-9, "cleanup")])
def test_death_finds_a_survivor_that_did_not_leave_for_its_peer(status: int, ended_by: str) -> None:
    processes = [process("client"), process("dp0.rank0", -9), process("dp0.rank1", status, ended_by)]  # type: ignore[arg-type]
    found = sentences("DEATH", failed(), faults=[KILL_RANK_0], fired=[1], processes=processes)
    assert found
    assert found[0].startswith("dp0.rank1 did not leave for the death of dp0.rank0 by itself")


@pytest.mark.parametrize("begun", [False, True])
def test_death_excuses_a_survivor_that_was_ended_before_it_could_run(begun: bool) -> None:
    processes = [process("client"), process("dp0.rank0", -9), process("dp0.rank1", -15)]
    events = [call(2, "dp0.rank1", "start"), *([call(3, "dp0.rank1", "relay.connect")] if begun else [])]
    found = sentences("DEATH", [*failed(), *events], faults=[KILL_RANK_0], fired=[1], processes=processes)
    assert bool(found) == begun


def test_orphan_finds_what_outlives_the_client_program() -> None:
    processes = [process("client"), process("dp0.rank0", -9, "cleanup"), process("dp0.rank1")]
    found = sentences("ORPHAN", processes=processes)
    assert found == ["dp0.rank0 was still running after the client program had ended"]


def test_residue_finds_what_is_left_in_the_folder() -> None:
    assert sentences("RESIDUE", residue=["socket e/relay"]) == ["the run left socket e/relay behind"]


def test_no_oracle_judges_a_run_that_the_world_stopped() -> None:
    processes = [process("client", -9, "cleanup"), process("dp0.rank0", -9, "cleanup")]
    stopped = history([mark(10, "request.sent", number=0)], ended="wedge", processes=processes, residue=["socket x"])
    assert check_all(stopped, TARGET) == ()
    assert stopped.cleanup == 1000 * MS


def test_a_stall_of_the_machine_is_held_against_nobody() -> None:
    refused = history(failed())  # type: ignore[arg-type]
    assert ORACLES["DEATH"](refused, TARGET)
    assert ORACLES["DEATH"](msgspec.structs.replace(refused, stalled=7.4), TARGET) == []
    assert ORACLES["DEATH"](msgspec.structs.replace(refused, stalled=0.3), TARGET)
