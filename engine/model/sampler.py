"""How the next token is drawn from the logits.

The draw is counter-based (Salmon et al. 2011): the one uniform number that position p of a request needs is a hash of
the request's seed and p. There is no generator and no state, so a token depends on its logits, the seed and p alone:
not on what else is in the batch, on how the prompt was cut into chunks, or on the rank that asks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.codec import Array
from engine.messages import Logprobs, SamplingParams


@dataclass(frozen=True, slots=True)
class Draw:
    """What decides one row: the request's parameters, its seed (64 bits), the position that the token will have."""

    params: SamplingParams
    seed: int
    position: int


def derived_seed(epoch: int, number: int, client_index: int = 0) -> int:
    """The seed, 64 bits, of a request that brings none: from the run's epoch, the number of its ADD message and whose
    message it is.

    Every rank knows all three, so all agree without a word.
    """
    # Message numbers begin at 1 and grow; a client's index is put at the other end, so the two never meet.
    return _hash(_hash(epoch, -client_index) if client_index else epoch, number)


def uniform(seed: int, position: int) -> float:
    """A number of [0, 1) with 53 random bits."""
    return (_hash(seed, position) >> 11) / 2**53


def sample(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """One token for each row of logits (n, vocab), by the draw of the same index."""
    tokens = [int(token) for token in logits.argmax(dim=-1)]
    for index, draw in enumerate(draws):
        if draw.params.temperature > 0 and draw.params.top_k != 1:
            tokens[index] = _drawn(probabilities(logits[index], draw.params), uniform(draw.seed, draw.position))
    return tokens


def probabilities(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """The distribution (vocab,) in float64 that a row is drawn from, for a temperature above 0.

    First the temperature; then the `top_k` likeliest stay; then, of those, the fewest likeliest whose shares of what is
    left reach `top_p`. Of equally likely tokens the lower id comes first. The likeliest token always stays.
    """
    row = logits.double()
    # The maximum goes first, so that no temperature is small enough to make an infinity of it.
    shares = ((row - row.max()) / params.temperature).softmax(-1)
    vocab = shares.shape[0]
    keep = params.top_k if 0 < params.top_k < vocab else vocab
    if keep == vocab and params.top_p >= 1:
        return shares
    ids = row.argsort(descending=True, stable=True)[:keep]
    ordered = shares[ids]
    if params.top_p < 1:
        sums = ordered.cumsum(-1)
        inside = torch.ones_like(ids, dtype=torch.bool)
        inside[1:] = sums[:-1] < params.top_p * sums[-1]
        ordered, ids = ordered[inside], ids[inside]
    return torch.zeros_like(shares).index_copy_(0, ids, ordered / ordered.sum())


def token_logprobs(logits: torch.Tensor, token: int, count: int) -> Logprobs:
    """Natural log-probabilities of one row of raw logits (vocab,): the token's, and the `count` likeliest."""
    logs = logits.double().log_softmax(-1)
    values, ids = logs.sort(descending=True, stable=True) if count else (logs, logs.long())
    return Logprobs(Array.of(logs[token, None]), Array.of(ids[None, :count]), Array.of(values[None, :count]))


def _drawn(shares: torch.Tensor, number: float) -> int:
    """The token at `number` of the cumulative distribution, tokens standing in the order of their ids."""
    sums = shares.cumsum(-1)
    token = int(torch.searchsorted(sums, number * float(sums[-1]), right=True))
    if token < sums.shape[0]:
        return token
    # Rounding has put the point at the very end, or the shares are not numbers (no model should bring that about).
    held = shares.nonzero()
    return int(held[-1])


def _hash(one: int, other: int) -> int:
    data = (one % 2**64).to_bytes(8, "little") + (other % 2**64).to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
