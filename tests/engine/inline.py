"""Engine cores in this process, fed by hand: no ranks, no sockets, no relay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
import torch

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.lifeline import Lifeline
from engine.messages import Abort, Add, MessageType, Request, RequestOutput
from engine.model.cache import KVCache
from engine.model.config import TINY
from engine.model.llama import Llama
from engine.parallel.group import TensorGroup
from engine.sequence import Chunk

EPOCH = 2**63 + 5


class Inline:
    """One core: messages are numbered and kept until the next step; outputs are collected by request."""

    def __init__(self, model: Llama, epoch: int = EPOCH, **changes: Any) -> None:
        self.config = EngineConfig(**changes)
        self.core = EngineCore(model, self.config, epoch)
        self.outputs: dict[str, list[RequestOutput]] = {}
        self.steps = 0
        self._messages = 0
        self._pending: list[bytes] = []

    def add(self, request: Request) -> None:
        self._messages += 1
        self._pending.append(MessageType.ADD.value + msgspec.msgpack.encode(Add(self._messages, request)))

    def abort(self, *request_ids: str) -> None:
        self._messages += 1
        self._pending.append(MessageType.ABORT.value + msgspec.msgpack.encode(Abort(self._messages, list(request_ids))))

    def step(self, late_aborts: Callable[[], frozenset[str]] = frozenset) -> list[RequestOutput]:
        raws, self._pending = self._pending, []
        self.steps += 1
        outputs = self.core.step(raws, late_aborts)
        for output in outputs:
            self.outputs.setdefault(output.request_id, []).append(output)
        return outputs

    def drain(self, most: int = 10_000) -> int:
        """Step until nothing is under way; returns how many steps it took, fails after `most`."""
        for count in range(most):
            if not self._pending and not self.core.has_work():
                return count
            self.step()
        raise RuntimeError(f"requests are still under way after {most} steps")

    def tokens(self, request_id: str) -> list[int]:
        return [token for output in self.outputs[request_id] for token in output.token_ids]


def whole_model() -> Llama:
    """The tiny model on one rank. A group of one never waits, so it has no use for a lifeline."""
    return Llama(TINY, TensorGroup(0, ["dp0.rank0"], cast(Lifeline, None), bounded=True))


class PageModel(Llama):
    """No model, but one that needs its pages: the next token is :func:`page_token` of what the pages hold."""

    def __init__(self) -> None:
        self.config = TINY
        self._held: dict[int, int] = {}
        self._page_size = 0

    def new_cache(self, pages: int, page_size: int) -> KVCache:
        self._page_size = page_size
        return cast(KVCache, None)

    def forward(self, chunks: Sequence[Chunk], cache: KVCache) -> torch.Tensor:
        for chunk in chunks:
            for offset, token in enumerate(chunk.token_ids):
                self._held[self._slot(chunk, chunk.start + offset)] = token
        ends = [chunk for chunk in chunks if chunk.sampled]
        logits = torch.zeros(len(ends), TINY.vocab)
        for row, chunk in enumerate(ends):
            logits[row, page_token([self._held[self._slot(chunk, position)] for position in range(chunk.end)])] = 1
        return logits

    def _slot(self, chunk: Chunk, position: int) -> int:
        return chunk.pages[position // self._page_size] * self._page_size + position % self._page_size


def page_token(tokens: Sequence[int]) -> int:
    """A token that depends on every token before it and on their order."""
    value = 7
    for token in tokens:
        value = (value * 31 + token + 1) % TINY.vocab
    return value


def page_tokens(prompt: Sequence[int], count: int) -> list[int]:
    """What :class:`PageModel` must answer."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(page_token(tokens))
    return tokens[len(prompt) :]
