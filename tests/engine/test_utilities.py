"""Utility calls: what each does, in which order, and that a call that fails is a reply and nothing worse."""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from engine.codec import Array, Decoder, Encoder
from engine.errors import DeadlineExceeded, EngineError, PeerFailed, StopRequested
from engine.messages import FinishReason, Request, SamplingParams
from engine.methods import Methods, require_sendable
from engine.utilities import UTILITIES
from engine.workers import WORKER_METHODS
from tests.engine.calls import called, refused, request
from tests.engine.inline import Inline, PageModel, page_tokens


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


def test_a_result_that_only_just_can_be_read_here_is_not_sent() -> None:
    """Whoever reads it does so inside of a record, and may be called from deeper down."""

    def readable(levels: int) -> bool:
        try:
            Decoder(object).decode(Encoder().encode(deep(levels)))
        except (ValueError, msgspec.MsgspecError):
            return False
        return True

    deepest = bisect.bisect_left(range(100_000), True, key=lambda levels: not readable(levels)) - 1
    require_sendable(deep(deepest - 300))
    with pytest.raises(ValueError, match="its result cannot be sent: it is nested too deeply"):
        require_sendable(deep(deepest - 100))


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
