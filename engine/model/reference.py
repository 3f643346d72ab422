"""What the engine must answer: the same model written a second time, in the plainest way.

One process, no shards, no cache, no batch: every token recomputes the whole sequence, head by head. It shares only the
weights with the engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from engine.model import weights
from engine.model.config import MODELS, ModelConfig


def greedy(model: str, prompt: Sequence[int], max_tokens: int) -> list[int]:
    """The `max_tokens` greedy tokens that follow `prompt`. Raises KeyError for an unknown model."""
    config = MODELS[model]
    table = {name: weights.full(config, name) for name in weights.shapes(config)}
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(max_tokens):
            tokens.append(_next_token(config, table, tokens))
    return tokens[len(prompt) :]


def _next_token(config: ModelConfig, table: dict[str, torch.Tensor], tokens: list[int]) -> int:
    state = table["embedding"][tokens]
    for index in range(config.layers):
        prefix = f"layers.{index}."
        layer = {name[len(prefix) :]: value for name, value in table.items() if name.startswith(prefix)}
        state = state + _attention(config, layer, _norm(config, state, layer["attention_norm"]))
        inner = _norm(config, state, layer["ffn_norm"])
        gate = inner @ layer["gate"].T
        state = state + (gate * torch.sigmoid(gate) * (inner @ layer["up"].T)) @ layer["down"].T
    logits = table["head"] @ _norm(config, state[-1:], table["norm"])[0]
    return int(torch.argmax(logits))


def _norm(config: ModelConfig, state: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return state / torch.sqrt((state * state).mean(dim=1, keepdim=True) + config.norm_eps) * weight


def _attention(config: ModelConfig, layer: dict[str, torch.Tensor], state: torch.Tensor) -> torch.Tensor:
    length, dim = state.shape[0], config.head_dim
    future = torch.triu(torch.full((length, length), -math.inf, dtype=state.dtype), diagonal=1)
    outs = []
    for head in range(config.heads):
        shared = head // (config.heads // config.kv_heads)
        query = _rotary(config, state @ layer["query"][head * dim : (head + 1) * dim].T)
        key = _rotary(config, state @ layer["key"][shared * dim : (shared + 1) * dim].T)
        value = state @ layer["value"][shared * dim : (shared + 1) * dim].T
        outs.append(torch.softmax(query @ key.T / math.sqrt(dim) + future, dim=1) @ value)
    return torch.cat(outs, dim=1) @ layer["attention_out"].T


def _rotary(config: ModelConfig, vectors: torch.Tensor) -> torch.Tensor:
    half = config.head_dim // 2
    turned = torch.empty_like(vectors)
    for pair in range(half):
        angle = torch.arange(vectors.shape[0], dtype=vectors.dtype) * config.rope_theta ** (-pair / half)
        one, two = vectors[:, pair], vectors[:, pair + half]
        turned[:, pair] = one * torch.cos(angle) - two * torch.sin(angle)
        turned[:, pair + half] = one * torch.sin(angle) + two * torch.cos(angle)
    return turned
