"""Which requests the engine takes: all that it can serve from beginning to end, and no other.

A refusal is one sentence for the caller. It depends on the request and the configuration alone; what depends on the
other requests (an id in use, too many waiting) is the scheduler's business.
"""

from __future__ import annotations

import math

from engine import embeds
from engine.config import EngineConfig
from engine.messages import Request

SEEDS = 2**64
"""A seed is a whole number from 0 up to below this."""


def problem(config: EngineConfig, request: Request) -> str | None:
    """Why such a request would be refused whenever it came, or None if it can be served."""
    return _length_problem(config, request) or _content_problem(config, request) or _params_problem(config, request)


def prompt_length(request: Request) -> int:
    """Tokens of the prompt: its ids, or its rows of embeddings."""
    if request.embeds is None:
        return len(request.prompt_ids)
    return request.embeds.shape[0] if request.embeds.shape else 0


def _length_problem(config: EngineConfig, request: Request) -> str | None:
    length, max_tokens = prompt_length(request), request.params.max_tokens
    longest = config.model_config.max_length
    if request.embeds is not None and request.prompt_ids:
        return "the prompt holds both token ids and embeds, expected one of them"
    if length < 1:
        return "the prompt is empty"
    if max_tokens < 1:
        return f"max_tokens is {max_tokens}, expected at least 1"
    if length + max_tokens > longest:
        return f"prompt of {length} tokens and max_tokens {max_tokens} exceed the model's length of {longest}"
    pages = -(-(length + max_tokens) // config.page_size)
    if pages > config.num_pages:
        return (
            f"prompt of {length} tokens and max_tokens {max_tokens} need {pages} pages of {config.page_size} tokens, "
            f"the engine has {config.num_pages}"
        )
    return None


def _content_problem(config: EngineConfig, request: Request) -> str | None:
    model = config.model_config
    if request.embeds is not None:
        return embeds.problem(request.embeds, model)
    strange = next((token for token in request.prompt_ids if not 0 <= token < model.vocab), None)
    return None if strange is None else f"the prompt holds token {strange}, expected 0 to {model.vocab - 1}"


def _params_problem(config: EngineConfig, request: Request) -> str | None:
    params, vocab = request.params, config.model_config.vocab
    checks = (
        ("temperature", math.isfinite(params.temperature) and params.temperature >= 0, "a finite number of at least 0"),
        ("top_k", params.top_k >= 0, "0 (all tokens) or more"),
        ("top_p", 0 < params.top_p <= 1, "more than 0 and at most 1"),
        ("seed", params.seed is None or 0 <= params.seed < SEEDS, "a whole number of 64 bits, or none"),
        ("logprobs", params.logprobs is None or 0 <= params.logprobs <= vocab, f"0 to {vocab}, or none"),
    )
    for field, good, expected in checks:
        if not good:
            return f"{field} is {getattr(params, field)}, expected {expected}"
    return None
