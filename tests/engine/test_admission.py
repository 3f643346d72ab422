"""A request that cannot be served is answered with a sentence, whatever is in it, and the engine goes on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.codec import ITEM_SIZES, Array
from engine.messages import ErrorKind, FinishReason, Request, SamplingParams
from tests.engine.inline import Inline, PageModel, page_tokens

ROW = np.ones((2, 96))


def embeds(*shape: int, dtype: str = "float64", data: bytes = ROW.astype("<f8").tobytes()) -> Array:
    return Array(dtype, shape or (2, 96), data)


def bad(**changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 4, **changes})


HALF_INFINITE = np.array([np.inf] * 192, dtype="<f2").tobytes()
BRAIN_NAN = np.full(192, 0x7FC0, dtype="<u2").tobytes()


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (Request("a", []), "the prompt is empty"),
        (Request("a", [1], bad(max_tokens=0)), "max_tokens is 0, expected at least 1"),
        (Request("a", [1], bad(max_tokens=-5)), "max_tokens is -5"),
        (Request("a", [1] * 500, bad(max_tokens=13)), "exceed the model's length of 512"),
        (Request("a", [1] * 200), "216 and"),
        (Request("a", [384]), "token 384, expected 0 to 383"),
        (Request("a", [1, -1]), "token -1"),
        (Request("a", [2**64 - 1]), "token 18446744073709551615"),
        (Request("a", [1], bad(temperature=-0.1)), "temperature is -0.1, expected a finite number of at least 0"),
        (Request("a", [1], bad(temperature=math.nan)), "temperature is nan"),
        (Request("a", [1], bad(temperature=math.inf)), "temperature is inf"),
        (Request("a", [1], bad(top_k=-1)), "top_k is -1, expected 0 (all tokens) or more"),
        (Request("a", [1], bad(top_p=0.0)), "top_p is 0.0, expected more than 0 and at most 1"),
        (Request("a", [1], bad(top_p=1.01)), "top_p is 1.01"),
        (Request("a", [1], bad(top_p=math.nan)), "top_p is nan"),
        (Request("a", [1], bad(seed=-1)), "seed is -1, expected a whole number of 64 bits"),
        (Request("a", [1], bad(logprobs=-1)), "logprobs is -1, expected 0 to 384"),
        (Request("a", [1], bad(logprobs=385)), "logprobs is 385"),
        (Request("a", [1], bad(), embeds()), "both token ids and embeds"),
        (Request("a", [], bad(), embeds(0, 96, data=b"")), "the prompt is empty"),
        (Request("a", [], bad(), Array("float64", (), bytes(8))), "the prompt is empty"),
        (Request("a", [], bad(), embeds(3, 64)), "embeds are of shape [3, 64], expected rows of the hidden size 96"),
        (Request("a", [], bad(), embeds(192)), "embeds are of shape [192], expected rows"),
        (Request("a", [], bad(), embeds(2, 96, 1)), "embeds are of shape [2, 96, 1], expected rows"),
        (Request("a", [], bad(), embeds(2, 768, dtype="int8")), "embeds are of type int8, expected one of float64, "),
        (Request("a", [], bad(), embeds(2**40, 0, data=b"")), "exceed the model's length"),
        (Request("a", [], bad(), embeds(data=(ROW * math.nan).tobytes())), "not finite in the model's float64"),
        (Request("a", [], bad(), embeds(dtype="float16", data=HALF_INFINITE)), "not finite"),
        (Request("a", [], bad(), embeds(dtype="bfloat16", data=BRAIN_NAN)), "not finite"),
    ],
)
def test_a_refusal_says_what_is_wrong_and_the_engine_goes_on(request_: Request, text: str) -> None:
    inline = Inline(PageModel(), num_pages=20, page_size=10)
    if text == "216 and":
        text = "prompt of 200 tokens and max_tokens 16 need 22 pages of 10 tokens, the engine has 20"
    inline.add(request_)
    inline.add(Request("good", [1], SamplingParams(2)))
    inline.drain()
    (refusal,) = inline.outputs["a"]
    assert (refusal.token_ids, refusal.finish_reason, refusal.error_kind) == ([], FinishReason.ERROR, ErrorKind.INVALID)
    assert text in (refusal.error or "")
    assert inline.tokens("good") == page_tokens([1], 2)


def test_an_id_that_is_under_way_is_refused_and_the_first_request_goes_on() -> None:
    inline = Inline(PageModel(), max_num_seqs=1)
    for name in ("a", "b"):
        inline.add(Request(name, [1], SamplingParams(3)))
    inline.add(Request("a", [2], SamplingParams(3)))
    inline.add(Request("b", [2], SamplingParams(3)))
    refusals = inline.step()[:2]
    assert [output.error for output in refusals] == [
        "request id 'a' is already under way",
        "request id 'b' is already under way",
    ]
    assert [output.error_kind for output in refusals] == [ErrorKind.INVALID] * 2
    inline.drain()
    assert inline.tokens("a") == inline.tokens("b") == page_tokens([1], 3)
    inline.add(Request("a", [2], SamplingParams(3)))  # no longer under way
    inline.drain()
    assert inline.tokens("a")[3:] == page_tokens([2], 3)


def test_the_extremes_of_what_is_allowed_are_served() -> None:
    for changes in ({"seed": 0}, {"seed": 2**64 - 1}, {"top_p": 1.0}, {"top_k": 2**40}, {"logprobs": 384}):
        inline = Inline(PageModel())
        inline.add(Request("a", [383] * 508, bad(temperature=1e300, **changes)))
        inline.drain()
        assert len(inline.tokens("a")) == 4


INTEGERS = st.integers(-(2**63), 2**64 - 1) | st.integers(-2, 400)
NUMBERS = st.floats() | st.sampled_from([0.0, 1.0, 0.5])
REQUESTS = st.builds(
    Request,
    st.sampled_from(["a", "b", ""]),
    st.lists(st.integers(0, 383) | INTEGERS, max_size=4),
    st.builds(
        SamplingParams,
        st.integers(-1, 6) | INTEGERS,
        NUMBERS,
        st.integers(-1, 3) | INTEGERS,
        NUMBERS,
        st.none() | INTEGERS,
        st.lists(INTEGERS, max_size=2),
        st.none() | INTEGERS,
    ),
    st.none()
    | st.builds(
        lambda dtype, shape: Array(dtype, shape, bytes(math.prod(shape) * ITEM_SIZES[dtype])),
        st.sampled_from(sorted(ITEM_SIZES)),
        st.lists(st.sampled_from([0, 1, 2, 96]), max_size=3),
    ),
)


@given(st.lists(REQUESTS, max_size=6))
def test_whatever_is_asked_every_request_is_answered_to_its_end(requests: list[Request]) -> None:
    inline = Inline(PageModel(), num_pages=3, page_size=4, max_num_seqs=2)
    for one in requests:
        inline.add(one)
    inline.drain(most=100)
    told = [output for outputs in inline.outputs.values() for output in outputs]
    assert sum(output.finish_reason is not None for output in told) == len(requests)
    for output in told:
        assert (
            (output.finish_reason == FinishReason.ERROR)
            == (output.error is not None)
            == (output.error_kind is not None)
        )
