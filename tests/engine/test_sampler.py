"""Drawing tokens: the right distribution, and the same token whoever else is in the batch."""

from __future__ import annotations

import math

import msgspec
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from engine.messages import Request, SamplingParams
from engine.model import reference, sampler
from engine.model.llama import Llama
from engine.model.sampler import Draw
from tests.engine.inline import EPOCH, Inline, whole_model

ROWS = st.lists(st.floats(-30, 30), min_size=1, max_size=40)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.floats(0.05, 10),
    top_k=st.integers(0, 45),
    top_p=st.floats(0.01, 1),
)
HOT = SamplingParams(12, temperature=2.0, top_k=50, top_p=0.95, seed=11)


@pytest.fixture(scope="module")
def model() -> Llama:
    return whole_model()


def row(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def clear(values: list[float], params: SamplingParams) -> bool:
    """Whether no sum of the likeliest shares is so near to top_p that rounding decides on which side it is."""
    shares = sorted(reference.distribution(values, msgspec.structs.replace(params, top_p=1.0)), reverse=True)
    return params.top_p == 1 or all(abs(math.fsum(shares[:n]) - params.top_p) > 1e-9 for n in range(1, len(shares)))


@given(ROWS, PARAMS)
def test_the_distribution_is_that_of_the_plain_implementation(values: list[float], params: SamplingParams) -> None:
    assume(clear(values, params))
    got = sampler.probabilities(row(*values), params).tolist()
    assert sum(got) == pytest.approx(1)
    assert got == pytest.approx(reference.distribution(values, params), abs=1e-9)


@given(ROWS, PARAMS, st.integers(0, 2**64 - 1), st.integers(0, 10_000))
def test_the_token_is_that_of_the_plain_implementation(
    values: list[float], params: SamplingParams, seed: int, position: int
) -> None:
    assume(clear(values, params))
    token = sampler.sample(row(*values)[None], [Draw(params, seed, position)])
    assert token == [reference.draw(row(*values), params, seed, position)]


@given(st.lists(st.tuples(st.lists(st.floats(-9, 9), min_size=8, max_size=8), PARAMS), min_size=1, max_size=5))
def test_a_row_s_token_does_not_depend_on_the_other_rows(rows: list[tuple[list[float], SamplingParams]]) -> None:
    torch.manual_seed(len(rows))  # nor on any global generator
    draws = [Draw(params, index, index) for index, (_, params) in enumerate(rows)]
    together = sampler.sample(torch.stack([row(*values) for values, _ in rows]), draws)
    alone = [
        sampler.sample(row(*values)[None], [draw])
        for (values, _), draw in zip(reversed(rows), reversed(draws), strict=True)
    ]
    assert together == [token for tokens in reversed(alone) for token in tokens]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.0, top_k=3, top_p=0.5),
        SamplingParams(temperature=5.0, top_k=1),
        SamplingParams(temperature=5.0, top_p=1e-12),
        SamplingParams(temperature=5e-324),
    ],
)
def test_what_leaves_one_token_in_is_greedy(params: SamplingParams) -> None:
    logits = torch.stack([row(1.0, 3.0, 2.9), row(0.0, -1.0, 7.0), row(4.0, 4.0, 1.0)])[:2]
    assert sampler.sample(logits, [Draw(params, seed, seed) for seed in range(2)]) == [1, 2]


def test_equally_likely_tokens_are_kept_by_their_ids() -> None:
    flat = row(0.0, 0.0, 0.0, 0.0)
    assert sampler.probabilities(flat, SamplingParams(temperature=1.0, top_k=2)).tolist() == [0.5, 0.5, 0, 0]
    assert sampler.probabilities(flat, SamplingParams(temperature=1.0, top_p=0.3)).tolist() == [0.5, 0.5, 0, 0]


def test_logits_that_are_no_numbers_still_give_a_token_of_the_vocabulary() -> None:
    for value in (math.nan, math.inf, -math.inf):
        for params in (SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_k=2, top_p=0.5)):
            token = sampler.sample(torch.full((1, 5), value), [Draw(params, 1, 1)])[0]
            assert 0 <= token < 5


def chi_square(counts: list[int], shares: list[float]) -> float:
    total = sum(counts)
    return sum((count - total * share) ** 2 / (total * share) for count, share in zip(counts, shares, strict=True))


@pytest.mark.parametrize("vary", ["seed", "position"])
def test_many_draws_follow_the_distribution(vary: str) -> None:
    """Fixed seeds: the figures are the same in every run. 27.9 is the 0.1 % point of chi-square with 9 degrees."""
    logits = row(*(math.log(share) for share in range(1, 11)))
    params = SamplingParams(temperature=1.0)
    draws = [Draw(params, index, 3) if vary == "seed" else Draw(params, 3, index) for index in range(4000)]
    tokens = sampler.sample(logits.expand(len(draws), 10), draws)
    counts = [tokens.count(token) for token in range(10)]
    assert chi_square(counts, [share / 55 for share in range(1, 11)]) < 27.9


def test_uniform_numbers_are_uniform_and_in_range() -> None:
    numbers = [sampler.uniform(seed, position) for seed in range(50) for position in range(100)]
    assert all(0 <= number < 1 for number in numbers)
    counts = [sum(int(number * 10) == tenth for number in numbers) for tenth in range(10)]
    assert chi_square(counts, [0.1] * 10) < 27.9


def test_a_missing_seed_is_derived_from_the_run_and_the_message(model: Llama) -> None:
    unseeded = SamplingParams(8, temperature=3.0)
    first, again, elsewhere = Inline(model), Inline(model), Inline(model, EPOCH + 1)
    for inline in (first, again, elsewhere):
        for name in ("a", "b"):
            inline.add(Request(name, [1, 2, 3], unseeded))
        inline.drain()
    rows = reference.embedded("tiny", [1, 2, 3])
    for number, name in enumerate(("a", "b"), start=1):
        seed = sampler.derived_seed(EPOCH, number)
        assert first.tokens(name) == again.tokens(name) == reference.generate("tiny", rows, unseeded, seed)
        assert elsewhere.tokens(name) != first.tokens(name)
    assert first.tokens("a") != first.tokens("b")


def test_clients_have_seeds_of_their_own_and_the_first_keeps_those_it_had_alone(model: Llama) -> None:
    assert sampler.derived_seed(EPOCH, 1) == sampler.derived_seed(EPOCH, 1, 0) == 14349383607674437685
    seeds = {sampler.derived_seed(EPOCH, number, client) for number in range(1, 200) for client in range(5)}
    assert len(seeds) == 199 * 5
    inline, unseeded = Inline(model), SamplingParams(8, temperature=3.0)
    told: dict[int, list[int]] = {client: [] for client in range(3)}
    for client in told:
        inline.add(Request("a", [1, 2, 3], unseeded), client)
    while inline.steps == 0 or inline.core.has_work():
        for client, outputs in inline.whole_step().outputs.items():
            told[client] += outputs[0].token_ids
    rows = reference.embedded("tiny", [1, 2, 3])
    for client, tokens in told.items():
        seed = sampler.derived_seed(EPOCH, 1, client)
        assert tokens == reference.generate("tiny", rows, unseeded, seed)


def test_the_same_seed_gives_the_same_tokens_alone_and_in_a_batch(model: Llama) -> None:
    expected = reference.generate("tiny", reference.embedded("tiny", [5, 6, 7]), HOT, 11)
    assert expected != reference.greedy("tiny", [5, 6, 7], 12)
    alone, mixed = Inline(model), Inline(model, max_batched_tokens=4, page_size=3)
    alone.add(Request("x", [5, 6, 7], HOT))
    alone.drain()
    for index in range(4):
        mixed.add(Request(f"y{index}", [index] * 9, SamplingParams(9, temperature=float(index))))
        mixed.step()
    mixed.add(Request("x", [5, 6, 7], HOT))
    mixed.drain()
    assert alone.tokens("x") == mixed.tokens("x") == expected


def test_logprobs_are_those_of_the_raw_logits(model: Llama) -> None:
    inline = Inline(model, max_batched_tokens=2)
    prompt = [9, 8, 7]
    inline.add(Request("some", prompt, SamplingParams(4, 1.5, 5, 0.9, seed=3, logprobs=6)))
    inline.add(Request("own", prompt, SamplingParams(2, logprobs=0)))
    inline.add(Request("all", prompt, SamplingParams(1, logprobs=384)))
    inline.add(Request("none", prompt, SamplingParams(2)))
    inline.drain()
    tokens = list(prompt)
    for output in inline.outputs["some"]:
        logs = reference.logits("tiny", reference.embedded("tiny", tokens)).log_softmax(-1).tolist()
        ranked = sorted(range(384), key=lambda token: -logs[token])[:6]
        assert output.logprobs is not None
        (told,) = output.logprobs
        assert told.logprob == pytest.approx(logs[output.token_ids[0]])
        assert [token for token, _ in told.top] == ranked
        assert [value for _, value in told.top] == pytest.approx([logs[token] for token in ranked])
        tokens += output.token_ids
    for output in inline.outputs["own"]:
        assert output.logprobs is not None
        assert [(one.top, one.logprob < 0) for one in output.logprobs] == [([], True)]
    (output,) = inline.outputs["all"]
    assert output.logprobs is not None
    assert sum(math.exp(value) for _, value in output.logprobs[0].top) == pytest.approx(1)
    assert output.logprobs[0].top[0] == (output.token_ids[0], output.logprobs[0].logprob)
    assert [output.logprobs for output in inline.outputs["none"]] == [None, None]
