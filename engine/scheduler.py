"""Which requests run in the next step: first come, first served, whole prompts and decode tokens in one batch.

Every rank runs its own scheduler on the same messages in the same order and comes to the same decisions: nothing here
depends on time, chance or the order of a set.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.messages import ErrorKind, FinishReason, Request, RequestOutput
from engine.model.config import ModelConfig

if TYPE_CHECKING:
    from engine.model.cache import KVCache


@dataclass(slots=True, eq=False)
class Sequence:
    """One admitted request: its tokens so far and, once it runs, its cache."""

    request: Request
    tokens: list[int]
    cache: KVCache | None = None
    produced: int = 0
    stop_tokens: frozenset[int] = field(default_factory=frozenset)

    @property
    def capacity(self) -> int:
        """The most tokens that can ever be in this request's cache."""
        return len(self.request.prompt_ids) + self.request.params.max_tokens


class Scheduler:
    """Waiting and running requests of one engine."""

    def __init__(self, model: ModelConfig, max_num_seqs: int) -> None:
        self._model = model
        self._max_num_seqs = max_num_seqs
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    def has_work(self) -> bool:
        """Whether the next step would run anything."""
        return bool(self._waiting or self._running)

    def add(self, request: Request) -> RequestOutput | None:
        """Admit a request, or return the output that says why not."""
        problem = self._problem(request)
        if problem is not None:
            return RequestOutput(request.request_id, [], FinishReason.ERROR, problem, ErrorKind.INVALID)
        stop_tokens = frozenset(request.params.stop_token_ids)
        self._waiting.append(Sequence(request, list(request.prompt_ids), stop_tokens=stop_tokens))
        return None

    def abort(self, request_ids: list[str]) -> list[RequestOutput]:
        """End those of the requests that are under way. Other ids are ignored."""
        wanted = frozenset(request_ids)
        ended = [seq for seq in (*self._running, *self._waiting) if seq.request.request_id in wanted]
        for sequence in ended:
            self._drop(sequence)
        return [RequestOutput(seq.request.request_id, [], FinishReason.ABORT) for seq in ended]

    def batch(self) -> list[Sequence]:
        """The sequences of the next step, the longest running first."""
        while self._waiting and len(self._running) < self._max_num_seqs:
            self._running.append(self._waiting.popleft())
        return list(self._running)

    def record(self, sequence: Sequence, token: int) -> RequestOutput:
        """The step gave `sequence` this token."""
        sequence.tokens.append(token)
        sequence.produced += 1
        reason = None
        if token in sequence.stop_tokens:
            reason = FinishReason.STOP
        elif sequence.produced >= sequence.request.params.max_tokens:
            reason = FinishReason.LENGTH
        if reason is not None:
            self._drop(sequence)
        return RequestOutput(sequence.request.request_id, [token], reason)

    def _drop(self, sequence: Sequence) -> None:
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        sequence.cache = None

    def _problem(self, request: Request) -> str | None:
        if any(seq.request.request_id == request.request_id for seq in (*self._running, *self._waiting)):
            return f"request id {request.request_id!r} is already under way"
        return request_problem(self._model, request.prompt_ids, request.params.max_tokens)


def request_problem(model: ModelConfig, prompt_ids: list[int], max_tokens: int) -> str | None:
    """Why the model cannot serve such a request, or None if it can."""
    length = len(prompt_ids)
    if length == 0:
        return "the prompt is empty"
    if max_tokens < 1:
        return f"max_tokens is {max_tokens}, expected at least 1"
    if length + max_tokens > model.max_length:
        return f"prompt of {length} tokens and max_tokens {max_tokens} exceed the model's length of {model.max_length}"
    strange = next((token for token in prompt_ids if not 0 <= token < model.vocab), None)
    if strange is not None:
        return f"the prompt holds token {strange}, expected 0 to {model.vocab - 1}"
    return None
