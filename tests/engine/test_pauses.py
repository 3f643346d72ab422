"""Pauses and sleeps: what becomes of requests under way and of new ones, and when a call is answered."""

from __future__ import annotations

import pytest
import torch

from engine.messages import ErrorKind, FinishReason, UtilityOutput
from engine.model import reference
from tests.engine.calls import called, refused, request
from tests.engine.inline import Inline, PageModel, page_tokens, whole_model


@pytest.fixture
def inline() -> Inline:
    return Inline(PageModel(), num_pages=64, page_size=4, max_num_seqs=2)


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
