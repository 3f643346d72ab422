"""Full pages of prompts are computed once and shared, and nobody can tell by the tokens.

The model is mostly :class:`tests.engine.inline.PageModel`, whose tokens come out wrong as soon as a page does not hold
what the request that reads it has asked for.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.client.aio import AsyncMPClient
from engine.config import Timeouts
from engine.messages import FinishReason, Request, SamplingParams
from engine.model import reference
from engine.pages import page_names
from tests.engine.forks import ForkFactory, config_for
from tests.engine.inline import Inline, PageModel, page_tokens, whole_model

PAGE = 4
PROMPT = list(range(10, 21))  # two full pages and three tokens


def served(**changes: Any) -> Inline:
    return Inline(PageModel(), **{"page_size": PAGE, "num_pages": 32, **changes})


def ask(inline: Inline, name: str, prompt: list[int], count: int = 3, client: int = 0) -> None:
    inline.add(Request(name, prompt, SamplingParams(count)), client)


def hits(inline: Inline) -> int:
    """Tokens of prompts that were found computed so far."""
    return inline.core.scheduler.counters.prefix_cached_tokens


def found(inline: Inline, prompt: list[int]) -> int:
    """Serves a request with that prompt, checks its tokens, and returns how many of the prompt were found computed."""
    name, before = f"found{inline.steps}", hits(inline)
    computed = inline.core.scheduler.counters.prompt_tokens
    ask(inline, name, prompt)
    inline.drain()
    assert inline.tokens(name) == page_tokens(prompt, 3)
    got = hits(inline) - before
    assert inline.core.scheduler.counters.prompt_tokens - computed == len(prompt) - got
    inline.core.scheduler.check_pages()
    return got


def test_the_same_prompt_is_computed_once() -> None:
    inline = served()
    assert found(inline, PROMPT) == 0
    assert found(inline, PROMPT) == 8
    assert inline.core.scheduler.pages.free == 32
    assert inline.core.scheduler.pages.named == 2


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    inline = served()
    assert found(inline, PROMPT[:8]) == 0
    assert found(inline, PROMPT[:8]) == 4
    assert found(inline, PROMPT[:9]) == 8


@pytest.mark.parametrize(("common", "expected"), [(0, 0), (3, 0), (4, 4), (7, 4), (8, 8), (11, 8)])
def test_what_two_prompts_have_in_common_is_shared_up_to_its_last_full_page(common: int, expected: int) -> None:
    inline = served()
    found(inline, PROMPT)
    assert found(inline, PROMPT[:common] + [99] * 6) == expected


def test_a_page_is_not_shared_after_other_tokens_or_at_another_place() -> None:
    inline = served()
    first, second = [1, 2, 3, 4], [5, 6, 7, 8]
    found(inline, [*first, *second, 9])
    assert found(inline, [*second, *second, 9]) == 0
    assert found(inline, [*second, *first, 9]) == 4  # the second of the line before
    assert found(inline, [*first, *first, 9]) == 4


def test_the_same_tokens_at_another_place_have_another_name() -> None:
    names = page_names([7] * 12, 4)
    assert len(set(names)) == 3
    assert page_names([7] * 11, 4) == names[:2]
    assert page_names([], 4) == page_names([1, 2, 3], 4) == []
    # The same in every process, whatever Python's own hashes are.
    assert [name.hex() for name in page_names([1, 2, 3, 4], 2)] == NAMES


NAMES = ["e8852dfc187a7b3928b26561829d4517", "ad3e8fbe5d96b1556bf5484e3328196a"]


def test_generated_tokens_are_not_shared() -> None:
    inline = served()
    ask(inline, "a", PROMPT[:6], 10)
    inline.drain()
    assert found(inline, PROMPT[:6] + inline.tokens("a")) == 4


def test_embeddings_are_neither_given_nor_taken() -> None:
    inline = Inline(whole_model(), page_size=PAGE)
    rows = reference.embedded("tiny", PROMPT)
    for name in ("a", "b"):
        inline.add(Request(name, [], SamplingParams(3), np.asarray(rows)))  # type: ignore[arg-type]
        inline.drain()
    assert (hits(inline), inline.core.scheduler.pages.named) == (0, 0)
    # An embedding stands for token 0, which must not be taken for one.
    ask(inline, "c", [0] * len(PROMPT))
    inline.drain()
    assert hits(inline) == 0
    assert inline.tokens("a") == inline.tokens("b") == reference.greedy("tiny", PROMPT, 3)
    assert inline.tokens("c") == reference.greedy("tiny", [0] * len(PROMPT), 3)


def test_nothing_is_shared_when_it_is_not_wanted() -> None:
    inline = served(prefix_caching=False)
    assert found(inline, PROMPT) == found(inline, PROMPT) == 0
    assert inline.core.scheduler.pages.named == 0


def test_requests_share_while_they_run_and_the_last_one_keeps_the_pages() -> None:
    inline = served(num_pages=11)
    ask(inline, "first", PROMPT, 9)
    inline.step()
    for name, client in (("second", 0), ("third", 1)):
        ask(inline, name, PROMPT, 9, client)
    inline.step()
    assert hits(inline) == 16
    # Two shared pages, and of its own for each: one begun by the prompt.
    assert inline.core.scheduler.pages.free == 11 - 2 - 3
    inline.abort("first")
    inline.abort("third", client=1)
    inline.step()
    inline.core.scheduler.check_pages()
    assert inline.core.scheduler.pages.free == 11 - 3
    inline.drain()
    assert inline.tokens("second") == page_tokens(PROMPT, 9)


def test_equal_prompts_that_come_together_are_each_computed_and_only_one_is_kept() -> None:
    inline = served()
    for name in ("a", "b"):
        ask(inline, name, PROMPT)
    inline.drain()
    assert hits(inline) == 0
    assert inline.core.scheduler.pages.named == 2
    assert inline.tokens("a") == inline.tokens("b") == page_tokens(PROMPT, 3)
    assert found(inline, PROMPT) == 8


def test_of_a_prompt_that_was_cut_short_only_the_computed_pages_are_shared() -> None:
    inline = served(max_batched_tokens=6)
    ask(inline, "a", PROMPT)
    inline.step()  # six tokens: one full page
    inline.abort("a")
    inline.step()
    assert inline.core.scheduler.pages.named == 1
    assert found(inline, PROMPT) == 4


def test_a_prompt_is_shared_before_it_is_complete() -> None:
    inline = served(max_batched_tokens=9, max_num_seqs=2)
    ask(inline, "long", list(range(40)), 2)
    inline.step()  # nine tokens: two full pages
    ask(inline, "short", list(range(9)), 2)
    inline.drain()
    assert hits(inline) == 8
    assert inline.tokens("long") == page_tokens(list(range(40)), 2)
    assert inline.tokens("short") == page_tokens(list(range(9)), 2)


def test_unused_pages_are_taken_first_then_the_longest_idle_and_the_end_of_a_prompt_before_its_beginning() -> None:
    inline = served(num_pages=10, page_size=2)
    old, young = [1, 1, 2, 2, 3], [4, 4, 5, 5, 6]
    for prompt in (old, young):
        assert found(inline, prompt) == 0
    assert inline.core.scheduler.pages.named == 4
    found(inline, [7] * 7)  # ten tokens in the five of the unused six pages, of which three get a name
    assert inline.core.scheduler.pages.named == 7
    found(inline, [8] * 5)  # eight tokens: three unused pages and one that was idle
    assert inline.core.scheduler.pages.named == 6 + 2
    assert found(inline, young) == 4
    assert found(inline, old) == 2


def test_idle_pages_count_as_free_and_shared_ones_are_not_paid_twice() -> None:
    inline = served(num_pages=4)
    found(inline, PROMPT)  # two named pages are idle, two unused
    ask(inline, "whole", [50] * 13)  # needs all four
    inline.step()
    assert inline.core.scheduler.running == 1
    inline.drain()
    assert inline.tokens("whole") == page_tokens([50] * 13, 3)
    # Two at once in five pages, though each needs four: they share three.
    inline = served(num_pages=5)
    prompt = list(range(13))
    found(inline, prompt)
    for name in ("a", "b"):
        ask(inline, name, prompt)
    inline.step()
    assert (inline.core.scheduler.running, inline.core.scheduler.pages.free) == (2, 0)
    inline.core.scheduler.check_pages()
    inline.drain()
    assert inline.tokens("a") == inline.tokens("b") == page_tokens(prompt, 3)


def test_an_idle_page_that_is_shared_is_not_promised_to_another() -> None:
    inline = served(num_pages=5, max_num_seqs=2)
    found(inline, PROMPT)
    ask(inline, "a", [60] * 10)  # four of the five
    ask(inline, "b", PROMPT[:9])  # one that is new and two that are idle, and one is left
    inline.step()
    assert (inline.core.scheduler.running, inline.core.scheduler.waiting) == (1, 1)
    inline.drain()
    assert inline.tokens("a") == page_tokens([60] * 10, 3)
    assert inline.tokens("b") == page_tokens(PROMPT[:9], 3)


# ---- reset ----


def reset(inline: Inline) -> Any:
    call = inline.call("reset_prefix_cache")
    inline.step()
    (reply,) = inline.replies[0, call]
    assert reply.failure is None
    return reply.result


def test_a_reset_drops_all_that_is_idle() -> None:
    inline = served()
    assert reset(inline) is True
    found(inline, PROMPT)
    assert reset(inline) is True
    assert inline.core.scheduler.pages.named == 0
    assert found(inline, PROMPT) == 0


def test_a_reset_under_live_requests_drops_the_rest_and_says_so() -> None:
    inline = served()
    other = [30] * 9
    found(inline, other)
    ask(inline, "live", PROMPT, 9)
    inline.step()
    assert inline.core.scheduler.pages.named == 4
    assert reset(inline) is False
    assert inline.core.scheduler.pages.named == 2
    assert found(inline, other) == 0
    assert found(inline, PROMPT) == 8
    inline.drain()
    assert inline.tokens("live") == page_tokens(PROMPT, 9)
    assert reset(inline) is True


def test_a_reset_without_the_cache_has_nothing_to_do() -> None:
    inline = served(prefix_caching=False)
    ask(inline, "live", PROMPT, 9)
    inline.step()
    assert reset(inline) is True


def test_what_was_cached_is_not_found_after_a_sleep() -> None:
    inline = served()
    found(inline, PROMPT)
    ask(inline, "live", PROMPT, 9)
    inline.step()
    for method in ("sleep", "wake_up"):
        inline.call(method)
        inline.step()
    assert inline.core.scheduler.pages.named == 0
    assert found(inline, PROMPT) == 0


# ---- whole histories ----

BASE = [1, 1, 2, 1, 1, 2, 2, 1, 1, 1, 2, 2]
"""Prompts are its beginnings, some with another end, so that many have much in common."""


ACTIONS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 12), st.sampled_from([[], [1], [2, 2], [3]]), st.integers(1, 5)),
    st.tuples(st.just("abort"), st.integers(0, 30)),
    st.tuples(st.just("step"), st.integers(1, 3)),
    st.tuples(st.just("call"), st.sampled_from(["reset_prefix_cache", "sleep", "wake_up"])),
)


@pytest.mark.timeout(400)
@settings(max_examples=150)
@given(
    script=st.lists(ACTIONS, max_size=30),
    page_size=st.integers(1, 4),
    spare=st.integers(0, 12),
    max_num_seqs=st.integers(1, 4),
    max_batched_tokens=st.sampled_from([1, 2, 3, 7, 64]),
)
def test_tokens_come_out_right_and_ranks_agree_whatever_is_shared(
    script: list[Any], page_size: int, spare: int, **changes: int
) -> None:
    changes |= {"page_size": page_size, "num_pages": -(-19 // page_size) + spare}
    one, other = served(**changes), served(**changes)
    prompts: dict[str, tuple[list[int], int]] = {}
    for action in [*script, ("call", "wake_up")]:
        for inline in (one, other):
            if action[0] == "add":
                prompt = [*BASE[: action[1]], *action[2]]
                ask(inline, f"r{len(prompts)}", prompt, action[3])
            elif action[0] == "abort":
                inline.abort(f"r{action[1]}")
            elif action[0] == "call":
                inline.call(action[1])
            else:
                for _ in range(action[1]):
                    inline.step()
                    inline.core.scheduler.check_pages()
        if action[0] == "add":
            prompts[f"r{len(prompts)}"] = prompt, action[3]
    for inline in (one, other):
        inline.drain()
    assert one.core.digest == other.core.digest
    assert hits(one) == hits(other)
    assert one.core.scheduler.pages.free == changes["num_pages"]
    for name, (prompt, count) in prompts.items():
        reason = one.outputs[name][-1].finish_reason
        assert reason in (FinishReason.LENGTH, FinishReason.ABORT)
        expected = page_tokens(prompt, count)
        assert one.tokens(name) == (expected if reason is FinishReason.LENGTH else expected[: len(one.tokens(name))])


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_real_ranks_share_alike_and_give_the_reference_s_tokens(size: int, factory: ForkFactory) -> None:
    """They compare in every step what they did, which pages and which tokens they computed among it."""
    base = list(range(100, 160))
    prompts = [base, base[:33], base, [*base[:20], 7, 8, 9], base[:48], base[:49]]
    timeouts = Timeouts(startup=20.0, handshake=10.0, step=30.0, stall=20.0, shutdown=5.0)

    async def run() -> tuple[list[list[int]], dict[str, int]]:
        client = AsyncMPClient(config_for(size, timeouts=timeouts, num_pages=12, max_batched_tokens=24), factory)
        try:
            tokens: list[list[int]] = []
            for index, prompt in enumerate(prompts):
                await client.add_request_async(Request(str(index), prompt, SamplingParams(6)))
                tokens.append([])
                while len(tokens[-1]) < 6:
                    tokens[-1] += [t for one in (await client.get_output_async()).outputs for t in one.token_ids]
            return tokens, await client.call_utility_async("step_counters")
        finally:
            client.shutdown()

    tokens, counters = asyncio.run(asyncio.wait_for(run(), 60))
    assert tokens == [reference.greedy("tiny", prompt, 6) for prompt in prompts]
    assert counters["prefix_cached_tokens"] == 0 + 32 + 48 + 16 + 32 + 48
    assert counters["prompt_tokens"] == sum(map(len, prompts)) - counters["prefix_cached_tokens"]
