"""The engine in the caller's own process: one step for each read, the same answers and refusals as elsewhere."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest

from engine.client.inproc import InprocClient
from engine.client.interface import EngineCoreClient
from engine.codec import Array
from engine.config import EngineConfig
from engine.errors import (
    ConfigError,
    EngineBusyError,
    EngineDeadError,
    EngineGenerateError,
    StartupError,
    UtilityError,
)
from engine.messages import ErrorKind, FinishReason, Outputs, Request, RequestOutput, SamplingParams
from engine.model import reference
from engine.model.llama import Llama
from engine.utilities import UTILITIES
from tests.engine.forks import replace

PROMPT = [3, 1, 4]


@pytest.fixture
def client() -> InprocClient:
    return InprocClient(EngineConfig())


def request(name: str, count: int = 4) -> Request:
    return Request(name, PROMPT, SamplingParams(count))


def drained(client: InprocClient, *names: str) -> dict[str, list[RequestOutput]]:
    """Reads until these requests have ended."""
    told: dict[str, list[RequestOutput]] = {name: [] for name in names}
    while not all(outputs and outputs[-1].finish_reason for outputs in told.values()):
        for output in client.get_output().outputs:
            told[output.request_id].append(output)
    return told


def tokens(outputs: list[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def test_it_is_what_the_choice_of_one_process_gives() -> None:
    assert type(EngineCoreClient.make_client(EngineConfig(), multiprocess=False)) is InprocClient


def test_each_read_is_one_step_and_empty_if_there_is_nothing(client: InprocClient) -> None:
    assert client.get_output() == Outputs(1, 0, [])
    client.add_request(request("a", 2))
    first, second, third = (client.get_output() for _ in range(3))
    expected = reference.greedy("tiny", PROMPT, 2)
    assert first == Outputs(2, 0, [RequestOutput("a", expected[:1])])
    assert second == Outputs(3, 0, [RequestOutput("a", expected[1:], FinishReason.LENGTH)])
    assert third == Outputs(4, 0, [])
    assert client.call_utility("step_counters")["steps"] == 4


def test_requests_are_served_side_by_side(client: InprocClient) -> None:
    for index in range(5):
        client.add_request(Request(str(index), [index] * 9, SamplingParams(5)))
    told = drained(client, *map(str, range(5)))
    for index in range(5):
        assert tokens(told[str(index)]) == reference.greedy("tiny", [index] * 9, 5)


def test_arrays_are_taken_as_they_are_at_the_call(client: InprocClient) -> None:
    rows = np.asarray(reference.embedded("tiny", PROMPT)).copy()
    client.add_request(Request("a", [], SamplingParams(3, logprobs=2), rows))  # type: ignore[arg-type]
    rows[:] = 0
    told = drained(client, "a")["a"]
    assert tokens(told) == reference.greedy("tiny", PROMPT, 3)
    assert told[0].logprobs is not None
    assert len(told[0].logprobs[0].top) == 2


def test_an_abort_ends_a_request_and_an_empty_one_is_nothing(client: InprocClient) -> None:
    client.add_request(request("a", 9))
    client.get_output()
    client.abort_requests([])
    client.abort_requests(["nobody"])
    assert len(client.get_output().outputs) == 1
    client.abort_requests(["a"])
    assert client.get_output().outputs == [RequestOutput("a", [], FinishReason.ABORT)]
    client.add_request(request("a", 1))
    assert tokens(drained(client, "a")["a"]) == reference.greedy("tiny", PROMPT, 1)


def test_refusals_are_those_of_every_client() -> None:
    client = InprocClient(EngineConfig(max_num_seqs=1, max_waiting=1))
    client.add_request(request("a"))
    with pytest.raises(EngineGenerateError, match="request id 'a' is already under way"):
        client.add_request(request("a"))
    client.add_request(request("b"))
    with pytest.raises(EngineBusyError, match=r"2 requests are under way \(max_num_seqs and max_waiting\)"):
        client.add_request(request("c"))
    drained(client, "a")
    with pytest.raises(EngineGenerateError, match="request 'bad' cannot be sent: "):
        client.add_request(Request("bad", "text"))  # type: ignore[arg-type]
    client.add_request(Request("empty", []))
    told = drained(client, "b", "empty")
    assert told["empty"][0].error_kind is ErrorKind.INVALID
    assert client.dead is None


def test_more_than_one_rank_is_refused() -> None:
    with pytest.raises(ConfigError, match="tp_size: got 2, expected 1, since the engine runs in this one process"):
        InprocClient(EngineConfig(tp_size=2))


def test_an_engine_that_cannot_be_built_is_a_failed_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: Llama) -> None:
        raise MemoryError("no room for the weights")

    monkeypatch.setattr(Llama, "load", load)
    with pytest.raises(StartupError, match=r"dp0\.rank0: MemoryError: no room for the weights") as caught:
        InprocClient(EngineConfig())
    assert (caught.value.role, caught.value.exit_code) == ("dp0.rank0", None)


def test_there_is_no_other_process_thread_or_socket(client: InprocClient) -> None:
    process = psutil.Process()
    children, threads, connections = process.children(), threading.enumerate(), process.net_connections("all")
    other = InprocClient(EngineConfig())
    other.add_request(request("a"))
    drained(other, "a")
    assert process.children() == children
    assert threading.enumerate() == threads
    assert process.net_connections("all") == connections
    other.shutdown()


# ---- utilities ----


def test_utilities_are_direct_calls_with_the_texts_of_every_client(client: InprocClient) -> None:
    client.add_request(request("a", 9))
    assert client.live_requests() == [[0, "a"]]
    client.pause_scheduler("keep")
    assert client.get_output().outputs == []
    assert client.is_scheduler_paused() is True
    client.resume_scheduler()
    assert tokens(drained(client, "a")["a"]) == reference.greedy("tiny", PROMPT, 9)
    for args, text in (
        (("nothing",), "no utility method nothing; there is collective_rpc, is_scheduler_paused, is_sleeping, live_"),
        (("sleep", 7), "Call to sleep method failed: level is 7, expected 1 "),
        (("collective_rpc", "nothing"), "Call to collective_rpc method failed: no worker method nothing; there is "),
        (("is_sleeping", object()), "call to is_sleeping cannot be sent: expected a numpy array, a torch tensor or "),
    ):
        with pytest.raises(UtilityError) as caught:
            client.call_utility(*args)
        assert caught.value.method == args[0]
        assert caught.value.text == str(caught.value)
        assert str(caught.value).startswith(text)
    assert client.dead is None


def test_a_pause_that_would_wait_is_refused_in_every_state(client: InprocClient) -> None:
    for state in ("idle", "busy", "paused"):
        if state == "busy":
            client.add_request(request("a", 9))
        elif state == "paused":
            client.pause_scheduler("keep")
        paused = client.is_scheduler_paused()
        with pytest.raises(UtilityError, match="Call to pause_scheduler method failed: mode 'wait' is for an engine "):
            client.pause_scheduler("wait")
        assert client.is_scheduler_paused() is paused


def test_collective_calls_have_one_result(client: InprocClient) -> None:
    assert client.collective_rpc("rank_info") == [{"role": "dp0.rank0", "rank": 0, "pid": os.getpid()}]
    sent = np.arange(1000.0)
    (back,) = client.collective_rpc("echo", sent)
    expected = Array.of(sent.copy())
    sent[:] = 0
    assert back == expected


def test_a_pause_in_mode_abort_tells_the_ends_with_the_next_read(client: InprocClient) -> None:
    client.add_request(request("a", 9))
    client.get_output()
    client.sleep(2)
    assert client.get_output().outputs == [RequestOutput("a", [], FinishReason.ABORT)]
    client.add_request(request("a"))
    assert client.get_output().outputs == []
    client.wake_up()
    assert tokens(drained(client, "a")["a"]) == reference.greedy("tiny", PROMPT, 4)


def test_statistics_ride_on_the_batches() -> None:
    client = InprocClient(EngineConfig(log_stats=True))
    assert client.get_output().stats is None
    client.add_request(request("a", 1))
    stats = client.get_output().stats
    assert stats is not None
    assert (stats.waiting, stats.running, stats.free_pages, stats.steps) == (0, 0, 512, 2)


# ---- death ----


def kill(client: InprocClient, error: BaseException) -> None:
    """From now on the model raises."""

    def forward(*args: Any) -> None:
        raise error

    replace(client._core.memory.model, "forward", forward)
    client.add_request(request("doomed"))


CALLS: list[Callable[[InprocClient], Any]] = [
    lambda client: client.get_output(),
    lambda client: client.add_request(request("b")),
    lambda client: client.call_utility("is_sleeping"),
    lambda client: client.pause_scheduler("wait"),
    lambda client: client.collective_rpc("digest"),
    lambda client: client.check_health(),
]


def test_an_exception_in_a_step_is_the_one_error_of_every_later_call(client: InprocClient) -> None:
    client.check_health()
    why = RuntimeError("the model broke")
    kill(client, why)
    with pytest.raises(EngineDeadError) as caught:
        client.get_output()
    error = caught.value
    assert (error.culprit, error.cause) == ("dp0.rank0", "RuntimeError: the model broke")
    assert error.__cause__ is why
    assert client.dead is error
    for _ in range(2):
        for call in CALLS:
            with pytest.raises(EngineDeadError) as caught:
                call(client)
            assert caught.value is error
            assert error.__cause__ is why
    client.abort_requests(["doomed"])
    client.shutdown()
    client.shutdown(drain=True)
    assert client.dead is error


def test_an_interrupt_in_a_step_is_the_caller_s_and_the_engine_s_end(client: InprocClient) -> None:
    kill(client, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        client.get_output()
    with pytest.raises(EngineDeadError, match="KeyboardInterrupt"):
        client.get_output()


def test_what_must_end_the_engine_in_a_utility_does(client: InprocClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fatal(core: Any) -> None:
        raise SystemExit(3)

    monkeypatch.setitem(UTILITIES._functions, "fatal", fatal)
    with pytest.raises(SystemExit):
        client.call_utility("fatal")
    with pytest.raises(EngineDeadError, match="SystemExit: 3"):
        client.check_health()


# ---- shutdown ----


def test_a_shutdown_aborts_what_is_under_way_and_can_be_repeated(client: InprocClient) -> None:
    for name in ("a", "b"):
        client.add_request(request(name, 9))
    client.get_output()
    client.shutdown()
    client.shutdown(5, drain=True)
    assert client.get_output().outputs == [RequestOutput(name, [], FinishReason.ABORT) for name in ("a", "b")]
    error = client.dead
    assert error is not None
    assert (error.culprit, error.cause) == ("client", "the engine was shut down")
    for call in CALLS:
        with pytest.raises(EngineDeadError) as caught:
            call(client)
        assert caught.value is error
    client.abort_requests(["a"])


def test_a_shutdown_can_finish_first_what_is_under_way(client: InprocClient) -> None:
    client.add_request(request("a", 9))
    client.shutdown(30, drain=True)
    assert tokens(drained(client, "a")["a"]) == reference.greedy("tiny", PROMPT, 9)
    with pytest.raises(EngineDeadError):
        client.get_output()


@pytest.mark.parametrize("timeout", [0, -1])
def test_a_drain_without_time_is_an_abort(client: InprocClient, timeout: float) -> None:
    client.add_request(request("a", 9))
    client.shutdown(timeout, drain=True)
    assert drained(client, "a") == {"a": [RequestOutput("a", [], FinishReason.ABORT)]}


def test_a_drain_of_a_paused_engine_ends(client: InprocClient) -> None:
    client.add_request(request("a", 9))
    client.pause_scheduler("keep")
    client.shutdown(30, drain=True)
    assert drained(client, "a") == {"a": [RequestOutput("a", [], FinishReason.ABORT)]}


def test_a_failure_while_draining_is_the_engine_s_death(client: InprocClient) -> None:
    kill(client, RuntimeError("the model broke"))
    client.shutdown(30, drain=True)
    with pytest.raises(EngineDeadError, match="the model broke"):
        client.get_output()


@pytest.mark.parametrize("timeout", ["soon", float("nan"), [1]])
def test_what_is_no_number_of_seconds_stops_nothing(client: InprocClient, timeout: Any) -> None:
    with pytest.raises(ValueError, match="timeout: got"):
        client.shutdown(timeout)
    assert client.dead is None


@pytest.mark.parametrize("name", ["get_output", "add_request", "abort_requests", "call_utility", "collective_rpc"])
def test_there_is_no_asyncio_in_one_process(client: InprocClient, name: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {"get_output": (), "add_request": (request("a"),)}
    awaited = getattr(client, f"{name}_async")(*arguments.get(name, ("x",)))
    with pytest.raises(NotImplementedError):
        awaited.send(None)
