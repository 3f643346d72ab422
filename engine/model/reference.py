"""What the engine must answer: the same model written a second time, in the plainest way.

One process, no shards, no cache, no batch: every token recomputes the whole sequence, head by head. It shares only the
weights with the engine.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence

import torch

from engine.messages import SamplingParams
from engine.model import weights
from engine.model.config import MODELS, ModelConfig


def greedy(model: str, prompt: Sequence[int], max_tokens: int) -> list[int]:
    """The `max_tokens` greedy tokens that follow `prompt`. Raises KeyError for an unknown model."""
    return generate(model, embedded(model, prompt), SamplingParams(max_tokens))


def embedded(model: str, tokens: Sequence[int]) -> torch.Tensor:
    """The tokens' rows of the embedding table, (tokens, hidden)."""
    return weights.full(MODELS[model], "embedding")[list(tokens)]


def generate(model: str, rows: torch.Tensor, params: SamplingParams, seed: int = 0) -> list[int]:
    """The `max_tokens` tokens that follow a prompt given as embeddings (rows, hidden), drawn as `params` say."""
    tokens: list[int] = []
    for _ in range(params.max_tokens):
        position = rows.shape[0]
        tokens.append(draw(logits(model, rows), params, seed, position))
        rows = torch.cat((rows, embedded(model, tokens[-1:])))
    return tokens


def logits(model: str, rows: torch.Tensor) -> torch.Tensor:
    """The logits (vocab,) after a sequence that is given as embeddings (rows, hidden)."""
    config = MODELS[model]
    table = {name: weights.full(config, name) for name in weights.shapes(config)}
    with torch.inference_mode():
        return _logits(config, table, rows)


def draw(logits: torch.Tensor, params: SamplingParams, seed: int, position: int) -> int:
    """The token that the sampler must draw from logits (vocab,)."""
    if params.temperature == 0:
        return int(torch.argmax(logits))
    hashed = hashlib.blake2b(struct.pack("<QQ", seed, position), digest_size=8).digest()
    point = (struct.unpack("<Q", hashed)[0] >> 11) * 2.0**-53
    shares = distribution(logits.tolist(), params)
    reached = 0.0
    for token, share in enumerate(shares):
        reached += share
        if reached > point:
            return token
    return max(token for token, share in enumerate(shares) if share > 0)


def distribution(logits: list[float], params: SamplingParams) -> list[float]:
    """The probability of each token at a temperature above 0, after top-k and then top-p."""
    top = max(logits)
    parts = [math.exp((value - top) / params.temperature) for value in logits]
    ranked = sorted(range(len(parts)), key=lambda token: (-logits[token], token))
    if params.top_k:
        ranked = ranked[: params.top_k]
    whole = math.fsum(parts[token] for token in ranked)
    kept: dict[int, float] = {}
    for token in ranked:
        if kept and sum(kept.values()) >= params.top_p * whole:
            break
        kept[token] = parts[token]
    chosen = math.fsum(kept.values())
    return [kept.get(token, 0.0) / chosen for token in range(len(parts))]


def _logits(config: ModelConfig, table: dict[str, torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    state = rows
    for index in range(config.layers):
        prefix = f"layers.{index}."
        layer = {name[len(prefix) :]: value for name, value in table.items() if name.startswith(prefix)}
        state = state + _attention(config, layer, _norm(config, state, layer["attention_norm"]))
        inner = _norm(config, state, layer["ffn_norm"])
        gate = inner @ layer["gate"].T
        state = state + (gate * torch.sigmoid(gate) * (inner @ layer["up"].T)) @ layer["down"].T
    return table["head"] @ _norm(config, state[-1:], table["norm"])[0]


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
