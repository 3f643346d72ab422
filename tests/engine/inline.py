"""Engine cores in this process, fed by hand: no ranks, no sockets, no relay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import torch

from engine.codec import Encoder
from engine.config import EngineConfig
from engine.core import EngineCore, StepResult
from engine.messages import Abort, Add, MessageType, Request, RequestOutput, Utility, UtilityOutput
from engine.model.cache import KVCache
from engine.model.config import TINY
from engine.model.llama import Llama
from engine.parallel.group import TensorGroup
from engine.sequence import Chunk, Key

EPOCH = 2**63 + 5


class Inline:
    """One core: messages are numbered and kept until the next step; outputs and replies are collected.

    Outputs are those of client 0 by request, replies are by client index and call id.
    """

    def __init__(self, model: Llama, epoch: int = EPOCH, **changes: Any) -> None:
        self.config = EngineConfig(**changes)
        self.core = EngineCore(model, self.config, epoch)
        self.outputs: dict[str, list[RequestOutput]] = {}
        self.replies: dict[tuple[int, int], list[UtilityOutput]] = {}
        self.steps = 0
        self._numbers: dict[int, int] = {}
        self._calls = 0
        self._pending: list[bytes] = []

    def add(self, request: Request, client: int = 0) -> None:
        self._send(MessageType.ADD, Add(self._next(client), request, client))

    def abort(self, *request_ids: str, client: int = 0) -> None:
        self._send(MessageType.ABORT, Abort(self._next(client), list(request_ids), client))

    def call(self, method: str, *args: Any, client: int = 0) -> int:
        """The call's id."""
        self._calls += 1
        self._send(MessageType.UTILITY, Utility(self._next(client), client, self._calls, method, list(args)))
        return self._calls

    def step(self, late_aborts: Callable[[], frozenset[Key]] = frozenset) -> list[RequestOutput]:
        """The outputs of client 0."""
        return self.whole_step(late_aborts).outputs.get(0, [])

    def whole_step(self, late_aborts: Callable[[], frozenset[Key]] = frozenset) -> StepResult:
        raws, self._pending = self._pending, []
        self.steps += 1
        result = self.core.step(raws, late_aborts)
        for output in result.outputs.get(0, []):
            self.outputs.setdefault(output.request_id, []).append(output)
        for client, reply in result.replies:
            self.replies.setdefault((client, reply.call_id), []).append(reply)
        return result

    def drain(self, most: int = 10_000) -> int:
        """Step until nothing is under way; returns how many steps it took, fails after `most`."""
        for count in range(most):
            if not self._pending and not self.core.has_work():
                return count
            self.step()
        raise RuntimeError(f"requests are still under way after {most} steps")

    def _next(self, client: int) -> int:
        self._numbers[client] = self._numbers.get(client, 0) + 1
        return self._numbers[client]

    def _send(self, kind: MessageType, record: Add | Abort | Utility) -> None:
        (body,) = Encoder(None).encode(record)
        self._pending.append(kind.value + body)

    def tokens(self, request_id: str) -> list[int]:
        return [token for output in self.outputs[request_id] for token in output.token_ids]


def whole_model() -> Llama:
    """The tiny model on one rank."""
    return Llama(TINY, TensorGroup.alone("dp0.rank0"))


class PageModel(Llama):
    """No model, but one that needs its pages: the next token is :func:`page_token` of what the pages hold."""

    def __init__(self) -> None:
        self.config = TINY
        self._held: dict[int, int] = {}
        self._page_size = 0

    def new_cache(self, pages: int, page_size: int) -> KVCache:
        self._page_size = page_size
        self._held = {}
        return cast(KVCache, SimpleNamespace(buffer=torch.empty(pages, page_size)))

    def load(self) -> None:
        """There are no weights."""

    def unload(self) -> None:
        """There are no weights."""

    def tensors(self) -> Iterator[torch.Tensor]:
        return iter(())

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
