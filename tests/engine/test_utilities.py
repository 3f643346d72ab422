"""Utility calls: what each does, in which order, and that a call that fails is a reply and nothing worse."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.codec import Array
from engine.errors import DeadlineExceeded, EngineError, PeerFailed, StopRequested
from engine.messages import ErrorKind, FinishReason, Request, SamplingParams, UtilityOutput
from engine.methods import Methods
from engine.model import reference
from engine.model.llama import Llama
from engine.utilities import UTILITIES
from engine.workers import WORKER_METHODS
from tests.engine.inline import Inline, PageModel, page_tokens, whole_model


def request(name: str, count: int = 3) -> Request:
    return Request(name, [1, 2, 3], SamplingParams(count))


def called(inline: Inline, method: str, *args: Any, client: int = 0) -> Any:
    """What a call in a step of its own returns."""
    reply = replied(inline, method, *args, client=client)
    assert reply.failure is None, reply.failure
    return reply.result


def refused(inline: Inline, method: str, *args: Any) -> str:
    """The text with which a call in a step of its own fails."""
    reply = replied(inline, method, *args)
    assert reply.result is None
    assert reply.failure is not None
    return reply.failure


def replied(inline: Inline, method: str, *args: Any, client: int = 0) -> UtilityOutput:
    call = inline.call(method, *args, client=client)
    inline.step()
    (reply,) = inline.replies[client, call]
    return reply


@pytest.fixture
def inline() -> Inline:
    return Inline(PageModel(), num_pages=64, page_size=4, max_num_seqs=2)


@pytest.fixture
def added() -> Iterator[Callable[[Methods, Callable[..., Any]], None]]:
    """Registers methods for one test."""
    before = [(methods, dict(methods._functions)) for methods in (UTILITIES, WORKER_METHODS)]

    def add(methods: Methods, function: Callable[..., Any]) -> None:
        methods.register(function)

    yield add
    for methods, functions in before:
        methods._functions = functions


# ---- pauses ----


def test_abort_ends_all_requests_at_once_and_new_ones_wait_for_the_resume(inline: Inline) -> None:
    for name in ("a", "b", "waiting"):
        inline.add(request(name))
    inline.add(request("a"), client=1)
    inline.step()
    inline.add(request("new"))
    inline.call("pause_scheduler", "abort")
    inline.add(request("later"))
    result = inline.whole_step()
    ended = [(output.request_id, output.finish_reason) for output in result.outputs[0]]
    assert ended == [(name, FinishReason.ABORT) for name in ("a", "b", "waiting", "new")]
    assert [(output.request_id, output.finish_reason) for output in result.outputs[1]] == [("a", FinishReason.ABORT)]
    assert [reply.failure for _, reply in result.replies] == [None]
    assert not inline.core.has_work()
    assert inline.core.scheduler.pages.free == 64
    assert called(inline, "live_requests") == [(0, "later")]
    assert inline.step() == []
    called(inline, "resume_scheduler")
    inline.drain()
    assert inline.tokens("later") == page_tokens([1, 2, 3], 3)


def test_wait_lets_what_is_under_way_finish_and_replies_only_then(inline: Inline) -> None:
    for name in ("a", "b", "waiting"):
        inline.add(request(name))
    call = inline.call("pause_scheduler", "wait")
    inline.add(request("new"))
    while inline.core.has_work() or inline.steps == 0:
        assert (0, call) not in inline.replies
        inline.step()
    assert inline.replies[0, call] == [UtilityOutput(call)]
    for name in ("a", "b", "waiting"):
        assert inline.tokens(name) == page_tokens([1, 2, 3], 3)
    assert "new" not in inline.outputs
    assert called(inline, "live_requests") == [(0, "new")]
    called(inline, "resume_scheduler")
    inline.drain()
    assert inline.tokens("new") == page_tokens([1, 2, 3], 3)


def test_wait_replies_at_once_when_nothing_is_under_way(inline: Inline) -> None:
    assert called(inline, "pause_scheduler", "wait") is None
    assert called(inline, "is_scheduler_paused") is True


def test_keep_freezes_all_and_the_resume_goes_on_where_they_were(inline: Inline) -> None:
    for name in ("a", "b", "waiting"):
        inline.add(request(name, 6))
    inline.step()
    call = inline.call("pause_scheduler", "keep")
    assert inline.step() == []
    assert inline.replies[0, call] == [UtilityOutput(call)]
    assert not inline.core.has_work()
    for _ in range(3):
        assert inline.step() == []
    assert called(inline, "live_requests") == [(0, "a"), (0, "b"), (0, "waiting")]
    called(inline, "resume_scheduler")
    inline.drain()
    for name in ("a", "b", "waiting"):
        assert inline.tokens(name) == page_tokens([1, 2, 3], 6)


@pytest.mark.parametrize("mode", ["abort", "keep"])
def test_aborts_work_during_a_pause_whatever_is_aborted(inline: Inline, mode: str) -> None:
    for name in ("running", "other", "waiting"):
        inline.add(request(name, 6))
    inline.step()
    called(inline, "pause_scheduler", mode)
    inline.add(request("held", 6))
    inline.step()
    inline.abort("running", "waiting", "held", "nobody")
    ended = [output.request_id for output in inline.step()]
    assert ended == (["running", "waiting", "held"] if mode == "keep" else ["held"])
    called(inline, "resume_scheduler")
    inline.drain()
    assert inline.core.scheduler.pages.free == 64
    if mode == "keep":
        assert inline.tokens("other") == page_tokens([1, 2, 3], 6)


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
def test_no_more_may_wait_during_a_pause_than_at_other_times(mode: str) -> None:
    inline = Inline(PageModel(), max_waiting=2)
    called(inline, "pause_scheduler", mode)
    for name in ("a", "b", "c"):
        inline.add(request(name))
    (refusal,) = inline.step()
    assert (refusal.request_id, refusal.error_kind) == ("c", ErrorKind.BUSY)
    called(inline, "resume_scheduler")
    inline.drain()
    assert inline.tokens("a") == inline.tokens("b") == page_tokens([1, 2, 3], 3)


def test_whoever_came_during_a_pause_starts_in_the_order_of_coming_behind_those_before() -> None:
    inline = Inline(PageModel(), max_num_seqs=1)
    inline.add(request("first"))
    inline.add(request("second"))
    inline.step()
    called(inline, "pause_scheduler", "keep")
    for name in ("third", "fourth"):
        inline.add(request(name))
    called(inline, "resume_scheduler")
    inline.drain()
    assert list(inline.outputs) == ["first", "second", "third", "fourth"]


def test_a_resume_fails_a_pause_that_still_waits_and_all_go_on(inline: Inline) -> None:
    inline.add(request("a", 6))
    pause = inline.call("pause_scheduler", "wait")
    inline.step()
    resume = inline.call("resume_scheduler")
    inline.step()
    text = "Call to pause_scheduler method failed: scheduling was resumed before everything under way was finished"
    assert inline.replies[0, pause] == [UtilityOutput(pause, text)]
    assert inline.replies[0, resume] == [UtilityOutput(resume)]
    assert called(inline, "is_scheduler_paused") is False
    inline.drain()
    assert inline.tokens("a") == page_tokens([1, 2, 3], 6)


def test_a_pause_whose_last_request_is_aborted_before_the_resume_has_succeeded(inline: Inline) -> None:
    inline.add(request("a", 6))
    pause = inline.call("pause_scheduler", "wait")
    inline.step()
    inline.abort("a")
    inline.call("resume_scheduler")
    inline.step()
    assert inline.replies[0, pause] == [UtilityOutput(pause)]


def test_every_order_of_two_pauses(inline: Inline) -> None:
    """The first call's reply, the second call's, and what is still under way, after the step of the second."""
    frozen = "Call to pause_scheduler method failed: what was under way has been frozen before it was finished"
    expected = {
        ("abort", "abort"): ("done", "done", []),
        ("abort", "wait"): ("done", "done", []),
        ("abort", "keep"): ("done", "done", []),
        ("wait", "abort"): ("done", "done", []),
        ("wait", "wait"): ("none", "none", ["a"]),
        ("wait", "keep"): (frozen, "done", ["a"]),
        ("keep", "abort"): ("done", "done", []),
        ("keep", "wait"): ("done", "none", ["a"]),
        ("keep", "keep"): ("done", "done", ["a"]),
    }
    for (first, second), wanted in expected.items():
        inline = Inline(PageModel())
        inline.add(request("a", 9))
        inline.step()
        calls = []
        for mode in (first, second):
            calls.append(inline.call("pause_scheduler", mode))
            inline.step()
        replies = [inline.replies.get((0, call), []) for call in calls]
        told = tuple(("none" if not got else got[0].failure or "done") for got in replies)
        assert (*told, inline.core.live(0)) == wanted, (first, second)
        assert called(inline, "is_scheduler_paused") is True
        # Whatever was before, a later `abort` and a resume give an engine that serves.
        called(inline, "pause_scheduler", "abort")
        assert all(inline.replies[0, call] for call in calls)
        called(inline, "resume_scheduler")
        inline.add(request("b"))
        inline.drain()
        assert inline.tokens("b") == page_tokens([1, 2, 3], 3)


def test_a_frozen_engine_that_is_asked_to_wait_drains(inline: Inline) -> None:
    inline.add(request("a", 6))
    inline.step()
    called(inline, "pause_scheduler", "keep")
    call = inline.call("pause_scheduler", "wait")
    inline.step()
    inline.drain()
    assert inline.replies[0, call] == [UtilityOutput(call)]
    assert inline.tokens("a") == page_tokens([1, 2, 3], 6)


def test_a_resume_without_a_pause_does_nothing(inline: Inline) -> None:
    inline.add(request("a"))
    called(inline, "resume_scheduler")
    inline.drain()
    assert inline.tokens("a") == page_tokens([1, 2, 3], 3)


def test_closing_ends_every_request_and_every_call_that_waits(inline: Inline) -> None:
    inline.add(request("a", 6))
    inline.add(request("b", 6), client=1)
    call = inline.call("pause_scheduler", "wait", client=1)
    inline.step()
    inline.add(request("held"))
    inline.step()
    result = inline.core.close("the server is shutting down")
    ended = {client: [(one.request_id, one.finish_reason) for one in told] for client, told in result.outputs.items()}
    assert ended == {0: [("a", FinishReason.ABORT), ("held", FinishReason.ABORT)], 1: [("b", FinishReason.ABORT)]}
    text = "Call to pause_scheduler method failed: the server is shutting down"
    assert result.replies == [(1, UtilityOutput(call, text))]
    assert inline.core.close("again").replies == []


# ---- sleep ----


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_gives_memory_back_and_a_wake_up_serves_as_before(level: int) -> None:
    inline = Inline(whole_model(), page_size=4)
    before = called(inline, "collective_rpc", "memory")[0]
    tensors = {name: tensor.clone() for name, tensor in enumerate(inline.core.memory.model.tensors())}
    assert before == {"weights": sum(one.nbytes for one in tensors.values()), "kv_cache": 2 * 2 * 512 * 4 * 96 * 8}
    inline.add(request("a", 6))
    inline.step()
    call = inline.call("sleep", level)
    (ended,) = inline.step()
    assert (ended.request_id, ended.finish_reason) == ("a", FinishReason.ABORT)
    assert inline.replies[0, call] == [UtilityOutput(call)]
    assert called(inline, "is_sleeping") is True
    asleep = called(inline, "collective_rpc", "memory")[0]
    assert asleep == {"weights": before["weights"] if level == 1 else 0, "kv_cache": 0}
    inline.add(request("b", 6))
    assert inline.step() == []
    called(inline, "wake_up")
    assert called(inline, "is_sleeping") is False
    assert called(inline, "collective_rpc", "memory")[0] == before
    for index, tensor in enumerate(inline.core.memory.model.tensors()):
        assert torch.equal(tensor, tensors[index])
    inline.drain()
    assert inline.tokens("b") == reference.greedy("tiny", [1, 2, 3], 6)


def test_scheduling_resumes_only_when_all_memory_is_back(inline: Inline) -> None:
    called(inline, "sleep", 2)
    inline.add(request("a"))
    called(inline, "wake_up", ["weights"])
    assert called(inline, "is_sleeping") is True
    assert called(inline, "is_scheduler_paused") is True
    text = "Call to resume_scheduler method failed: the engine sleeps, kv_cache must be woken up first"
    assert refused(inline, "resume_scheduler") == text
    assert not inline.core.has_work()
    called(inline, "wake_up", ["kv_cache"])
    inline.drain()
    assert inline.tokens("a") == page_tokens([1, 2, 3], 3)


def test_a_deeper_sleep_gives_the_rest_back_and_a_lighter_one_takes_nothing(inline: Inline) -> None:
    called(inline, "sleep", 1)
    assert inline.core.memory.missing == ["kv_cache"]
    called(inline, "sleep", 2)
    assert inline.core.memory.missing == ["kv_cache", "weights"]
    called(inline, "sleep", 1)
    assert inline.core.memory.missing == ["kv_cache", "weights"]
    called(inline, "wake_up", [])
    assert inline.core.memory.missing == ["kv_cache", "weights"]


def test_a_wake_up_of_one_that_is_awake_does_not_end_a_pause(inline: Inline) -> None:
    called(inline, "pause_scheduler", "keep")
    called(inline, "wake_up")
    assert called(inline, "is_scheduler_paused") is True


def test_a_pause_while_asleep_wakes_nothing(inline: Inline) -> None:
    called(inline, "sleep", 1)
    for mode in ("abort", "wait", "keep"):
        called(inline, "pause_scheduler", mode)
    assert inline.core.memory.missing == ["kv_cache"]
    called(inline, "wake_up")
    assert called(inline, "is_scheduler_paused") is False


def test_a_wake_up_that_fails_is_a_reply_and_can_be_repeated(inline: Inline, monkeypatch: pytest.MonkeyPatch) -> None:
    called(inline, "sleep", 2)

    def load(self: PageModel) -> None:
        raise MemoryError("no room for the weights")

    with monkeypatch.context() as patch:
        patch.setattr(PageModel, "load", load)
        assert refused(inline, "wake_up") == "Call to wake_up method failed: no room for the weights"
    assert inline.core.memory.missing == ["weights"]
    called(inline, "wake_up")
    assert called(inline, "is_sleeping") is False


# ---- looks ----


def test_the_counters_count(inline: Inline) -> None:
    zero = called(inline, "step_counters")
    assert zero == {
        "steps": 1,
        "accepted": 0,
        "refused": 0,
        "finished": 0,
        "aborted": 0,
        "prompt_tokens": 0,
        "prefix_cached_tokens": 0,
        "generated_tokens": 0,
    }
    inline.add(request("a", 4))
    inline.add(request("b", 9))
    inline.add(Request("empty", []))
    inline.step()
    inline.abort("b")
    inline.drain()
    counted = called(inline, "step_counters")
    assert counted == {
        "steps": 6,
        "accepted": 2,
        "refused": 1,
        "finished": 1,
        "aborted": 1,
        "prompt_tokens": 6,
        "prefix_cached_tokens": 0,
        "generated_tokens": 5,
    }


def test_live_requests_are_told_with_their_clients_in_the_order_of_acceptance(inline: Inline) -> None:
    for name, client in (("a", 1), ("b", 0), ("a", 0)):
        inline.add(request(name, 9), client=client)
    assert called(inline, "live_requests") == [(1, "a"), (0, "b"), (0, "a")]
    assert inline.core.live(0) == ["b", "a"]
    assert inline.core.live(1) == ["a"]


# ---- order, and every rank alike ----


def test_calls_take_effect_in_the_order_of_arrival_within_one_step(inline: Inline) -> None:
    inline.add(request("a"))
    looks = [inline.call("live_requests")]
    inline.abort("a")
    looks.append(inline.call("live_requests"))
    inline.call("pause_scheduler", "keep")
    looks.append(inline.call("is_scheduler_paused"))
    inline.call("resume_scheduler")
    looks.append(inline.call("is_scheduler_paused"))
    inline.step()
    assert [inline.replies[0, call][0].result for call in looks] == [[(0, "a")], [], True, False]


def test_a_call_is_part_of_the_digest(inline: Inline) -> None:
    digests = set()
    for method in ("is_sleeping", "is_scheduler_paused", "nothing of the kind"):
        one = Inline(PageModel())
        one.call(method)
        one.step()
        digests.add(one.core.digest)
    assert len(digests) == 3


# ---- clients ----


def test_equal_ids_of_two_clients_are_two_requests(inline: Inline) -> None:
    inline.add(Request("a", [1], SamplingParams(5)))
    inline.add(Request("a", [2], SamplingParams(5)), client=1)
    first = inline.whole_step()
    assert [first.outputs[client][0].token_ids for client in (0, 1)] == [page_tokens([1], 1), page_tokens([2], 1)]
    inline.abort("a", client=1)
    second = inline.whole_step()
    assert [output.finish_reason for output in second.outputs[1]] == [FinishReason.ABORT]
    inline.drain()
    assert inline.tokens("a") == page_tokens([1], 5)


def test_replies_go_to_whoever_called(inline: Inline) -> None:
    calls = [inline.call("is_sleeping", client=client) for client in (2, 0, 1)]
    result = inline.whole_step()
    assert [(client, reply.call_id) for client, reply in result.replies] == [
        (2, calls[0]),
        (0, calls[1]),
        (1, calls[2]),
    ]


def test_a_late_abort_concerns_the_request_of_that_client_only(inline: Inline) -> None:
    for client in (0, 1):
        inline.add(request("a", 1), client=client)
    result = inline.whole_step(lambda: frozenset({(1, "a")}))
    assert [result.outputs[client][0].finish_reason for client in (0, 1)] == [FinishReason.LENGTH, FinishReason.ABORT]


def test_statistics_come_only_with_the_setting_and_when_something_happened() -> None:
    quiet, telling = Inline(PageModel()), Inline(PageModel(), log_stats=True, max_num_seqs=1, page_size=2, num_pages=8)
    for inline in (quiet, telling):
        inline.add(request("a", 2))
        inline.add(request("b", 2))
    assert quiet.whole_step().stats is None
    stats = telling.whole_step().stats
    assert stats is not None
    assert (stats.waiting, stats.running, stats.free_pages, stats.steps) == (1, 1, 6, 1)
    telling.drain()
    assert telling.whole_step().stats is None


# ---- failures ----


@pytest.mark.parametrize(
    ("method", "args", "text"),
    [
        ("pause_scheduler", ["soon"], "mode is 'soon', expected one of abort, wait, keep"),
        ("pause_scheduler", [1], "mode: Expected `str`, got `int`"),
        ("pause_scheduler", ["keep", 1], "too many positional arguments; it takes (mode)"),
        ("resume_scheduler", [None], "too many positional arguments; it takes ()"),
        ("sleep", [3], "level is 3, expected 1 (the key-value cache) or 2 (the weights too)"),
        ("sleep", [True], "level: Expected `int`, got `bool`"),
        ("wake_up", [["weights", "disk"]], "tags hold 'disk', expected kv_cache and weights, or none for both"),
        ("wake_up", ["weights"], "tags: Expected `array | null`, got `str`"),
        ("profile", [], "missing a required argument: 'start'; it takes (start, directory)"),
        ("profile", ["yes"], "start: Expected `bool`, got `str`"),
        ("profile", [False], "dp0.rank0: no profile is being recorded"),
        ("collective_rpc", ["echo"], "dp0.rank0: missing a required argument: 'value'; it takes (value)"),
        (
            "collective_rpc",
            ["step"],
            "no worker method step; there is digest, echo, memory, rank_info, ",
        ),
        ("collective_rpc", ["echo", "x"], "args: Expected `array | null`, got `str`"),
    ],
)
def test_a_call_that_cannot_be_made_is_refused_with_its_reason(
    inline: Inline, method: str, args: list[Any], text: str
) -> None:
    inline.add(request("a"))
    assert refused(inline, method, *args).startswith(f"Call to {method} method failed: {text}")
    assert inline.core.pausing.mode is None
    assert inline.core.memory.missing == []
    inline.drain()
    assert inline.tokens("a") == page_tokens([1, 2, 3], 3)


@pytest.mark.parametrize("method", ["step", "__init__", "abort_all", "", "register"])
def test_only_what_is_registered_can_be_called(inline: Inline, method: str) -> None:
    names = (
        "collective_rpc, is_scheduler_paused, is_sleeping, live_requests, pause_scheduler, profile, "
        "reset_prefix_cache, resume_scheduler, sleep, step_counters, wake_up"
    )
    assert refused(inline, method) == f"no utility method {method}; there is {names}"


Add = Callable[[Methods, Callable[..., Any]], None]


def test_an_exception_in_a_method_is_a_reply_and_the_engine_goes_on(inline: Inline, added: Add) -> None:
    def broken(core: Any) -> None:
        raise RuntimeError("it broke")

    def nameless(core: Any) -> None:
        raise RuntimeError

    def surrogate(core: Any) -> None:
        raise RuntimeError("\ud800")

    for function in (broken, nameless, surrogate):
        added(UTILITIES, function)
    inline.add(request("a"))
    assert refused(inline, "broken") == "Call to broken method failed: it broke"
    assert refused(inline, "nameless") == "Call to nameless method failed: RuntimeError"
    assert refused(inline, "surrogate") == "Call to surrogate method failed: \\ud800"
    inline.drain()
    assert inline.tokens("a") == page_tokens([1, 2, 3], 3)


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        SystemExit(3),
        PeerFailed("dp0.rank1", "gone"),
        DeadlineExceeded("dp0.rank1", "late"),
        StopRequested(),
        EngineError("an invariant"),
    ],
)
@pytest.mark.parametrize("where", ["utility", "worker"])
def test_what_must_end_the_engine_does(inline: Inline, added: Add, error: BaseException, where: str) -> None:
    def fatal(core: Any) -> None:
        raise error

    added(UTILITIES if where == "utility" else WORKER_METHODS, fatal)
    if where == "utility":
        inline.call("fatal")
    else:
        inline.call("collective_rpc", "fatal")
    with pytest.raises(type(error)) as caught:
        inline.step()
    assert caught.value is error


def deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (object(), "expected a numpy array, a torch tensor or an Array, got object"),
        (2**64, "can't serialize ints"),
        ("\ud800", "surrogates not allowed"),
        (torch.zeros(2, dtype=torch.complex64), "a tensor of torch.complex64 cannot be sent"),
        (deep(5000), "nested too deeply"),
        ({torch.zeros(1): 1}, "map keys must be hashable"),
    ],
)
@pytest.mark.parametrize("where", ["utility", "worker"])
def test_a_result_that_cannot_be_sent_is_a_failed_reply(
    inline: Inline, added: Add, value: Any, text: str, where: str
) -> None:
    def strange(core: Any) -> Any:
        return value

    added(UTILITIES if where == "utility" else WORKER_METHODS, strange)
    said = refused(inline, "strange") if where == "utility" else refused(inline, "collective_rpc", "strange")
    name, culprit = ("strange", "") if where == "utility" else ("collective_rpc", "dp0.rank0: ")
    assert said.startswith(f"Call to {name} method failed: {culprit}its result cannot be sent: ")
    assert text in said
    assert called(inline, "is_sleeping") is False


# ---- calls on every rank ----


def test_arrays_come_back_as_they_went(inline: Inline) -> None:
    bits = torch.arange(600, dtype=torch.float32).to(torch.bfloat16).reshape(2, 300)
    values = [np.arange(5, dtype=np.int16), np.float64(1.5), bits, np.zeros((0, 3)), np.arange(6).reshape(2, 3).T]
    for value in values:
        (back,) = called(inline, "collective_rpc", "echo", [value])
        if isinstance(value, np.float64):
            assert back == 1.5
        else:
            assert back == Array.of(value)
    assert called(inline, "collective_rpc", "echo", [{"a": [values[0], "text", None, b"bytes"]}]) == [
        {"a": [Array.of(values[0]), "text", None, b"bytes"]}
    ]


def test_rank_info_and_digest(inline: Inline) -> None:
    assert called(inline, "collective_rpc", "rank_info") == [{"role": "dp0.rank0", "rank": 0, "pid": os.getpid()}]
    digest = inline.core.digest
    assert called(inline, "collective_rpc", "digest", []) == [digest]


# ---- profiles ----


def test_a_profile_is_a_chrome_trace_of_what_ran_between_start_and_stop(model: Llama, tmp_path: Path) -> None:
    inline = Inline(model)
    assert called(inline, "profile", True, str(tmp_path)) is None
    assert refused(inline, "profile", True) == (
        "Call to profile method failed: dp0.rank0: a profile is being recorded already"
    )
    inline.add(request("a"))
    inline.drain()
    (path,) = called(inline, "profile", False)
    assert Path(path).parent == tmp_path
    assert Path(path).name.startswith("dp0.rank0.")
    assert [one.name for one in tmp_path.iterdir()] == [Path(path).name]
    events = json.loads(Path(path).read_text())["traceEvents"]
    assert any(event.get("name") == "aten::linear" for event in events)
    assert inline.tokens("a") == reference.greedy("tiny", [1, 2, 3], 3)


def test_a_profile_goes_into_the_directory_that_is_named_last(inline: Inline, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    paths = []
    for _ in range(2):
        called(inline, "profile", True, str(first))
        paths += called(inline, "profile", False, str(second))
    assert len(set(paths)) == 2
    assert sorted(paths) == sorted(str(path) for path in second.iterdir())
    assert list(first.iterdir()) == []


@pytest.mark.parametrize(
    ("directory", "text"),
    [("nothing/there", "No such file or directory"), ("file", "Not a directory"), ("\0", "embedded null byte")],
)
def test_a_directory_that_cannot_be_written_to_is_refused_at_the_start_and_at_the_end(
    inline: Inline, tmp_path: Path, directory: str, text: str
) -> None:
    (tmp_path / "file").touch()
    target = str(tmp_path / directory)
    said = f"Call to profile method failed: dp0.rank0: directory {target!r} cannot be written to: {text}"
    assert refused(inline, "profile", True, target) == said
    called(inline, "profile", True)
    assert refused(inline, "profile", False, target) == said
    text = "Call to profile method failed: dp0.rank0: no profile is being recorded"
    assert refused(inline, "profile", False, str(tmp_path)) == text


def test_a_profile_without_any_directory_is_refused_at_its_end(inline: Inline) -> None:
    called(inline, "profile", True)
    text = "Call to profile method failed: dp0.rank0: no directory was named, neither at the start nor now"
    assert refused(inline, "profile", False) == text


@pytest.fixture(scope="module")
def model() -> Llama:
    return whole_model()
