"""A model of what a client was promised: which tokens every request must bring, and what may keep it from going on.

It is told what was sent, in the order of sending, and every batch that was read; it knows nothing of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from engine.messages import ErrorKind, FinishReason, Outputs, Request, RequestOutput, SamplingParams
from engine.model import reference

PROMPTS = ([7], [11, 12, 13], [0, 383, 256, 1], list(range(40, 58)))
KNOWN = 12
"""Tokens after each prompt that are compared with the reference; a longer request is compared as far as that."""

SEATS, WAITING = 3, 5
"""`max_num_seqs` and `max_waiting` of the engines: few, so that requests do wait, and some come too many."""


@cache
def greedy(prompt: int) -> list[int]:
    """The tokens that follow a prompt."""
    return reference.greedy("tiny", PROMPTS[prompt], KNOWN)


def embedded(prompt: int) -> np.ndarray[Any, Any]:
    """A prompt as embeddings, in memory of its own; every one of them is large enough to travel without a copy."""
    rows: np.ndarray[Any, Any] = reference.embedded("tiny", PROMPTS[prompt]).double().numpy().copy()
    return rows


@dataclass(eq=False)
class Promise:
    """One request: what it must bring and what it has brought.

    `doomed` says that its end was asked for. `held` says that it came during a pause. `crowded` says that so many were
    under way that it may be refused. `arrived` says that the engine is known to have it.
    """

    request: Request
    expected: list[int]
    held: bool = False
    crowded: bool = False
    doomed: bool = False
    arrived: bool = False
    told: list[int] = field(default_factory=list)
    end: RequestOutput | None = None

    @classmethod
    def of(cls, name: str, prompt: int, count: int, logprobs: int | None, rows: np.ndarray[Any, Any] | None) -> Promise:
        """A greedy request, as embeddings if there are any."""
        params = SamplingParams(count, logprobs=logprobs)
        ids = PROMPTS[prompt] if rows is None else []
        return cls(Request(name, ids, params, rows), greedy(prompt)[:count])  # type: ignore[arg-type]

    @property
    def open(self) -> bool:
        """Whether its end has not been read yet."""
        return self.end is None

    def take(self, output: RequestOutput) -> None:
        """The next output of it was read."""
        assert self.open, f"{output} came after {self.end}"
        self.arrived = True
        self.told += output.token_ids
        compared = min(len(self.told), KNOWN)
        assert self.told[:compared] == self.expected[:compared], self.told
        self._check_logprobs(output)
        if output.finish_reason is None:
            assert output.token_ids, "an output without anything in it"
            return
        self.end = output
        if output.finish_reason is FinishReason.LENGTH:
            assert len(self.told) == self.request.params.max_tokens
        elif output.finish_reason is FinishReason.ABORT:
            assert self.doomed, "aborted, and nobody asked for it"
        else:
            assert (output.error_kind, self.crowded, self.told) == (ErrorKind.BUSY, True, []), output

    def _check_logprobs(self, output: RequestOutput) -> None:
        count = self.request.params.logprobs
        if count is None or not output.token_ids:
            assert output.logprobs is None
            return
        assert output.logprobs is not None
        assert len(output.logprobs) == len(output.token_ids)
        for token, logprobs in zip(output.token_ids, output.logprobs, strict=True):
            assert len(logprobs.top) == count
            assert logprobs.top[0] == (token, logprobs.logprob)


class Promises:
    """All requests of one client, and the state of the engine's scheduler as they were sent."""

    def __init__(self) -> None:
        self.all: list[Promise] = []
        self.added = 0
        self.holding = False
        self.frozen = False
        self.missing: list[str] = []
        self._last = 0

    @property
    def open(self) -> list[Promise]:
        """Those whose ends have not been read."""
        return [promise for promise in self.all if promise.open]

    @property
    def owed(self) -> list[Promise]:
        """Those of which something must come, if only the engine runs."""
        return [promise for promise in self.open if promise.doomed or self._runs(promise)]

    def _runs(self, promise: Promise) -> bool:
        return not self.holding or not (promise.held or self.frozen)

    # ---- what was sent ----

    def add(self, promise: Promise) -> None:
        promise.held = self.holding
        promise.crowded = len(self.open) >= WAITING
        self.added += 1
        self.all.append(promise)

    def abort(self, names: Sequence[str]) -> None:
        for promise in self.open:
            if promise.request.request_id in names:
                promise.doomed = True

    def abort_all(self) -> None:
        self.abort([promise.request.request_id for promise in self.open])

    def pause(self, mode: str) -> None:
        if mode == "abort":
            self.abort_all()
        self.holding, self.frozen = True, mode == "keep"

    def resume(self) -> None:
        if self.missing:
            return
        self.holding = self.frozen = False
        for promise in self.open:
            promise.held = False

    def sleep(self, level: int) -> None:
        self.pause("abort")
        gone = ["kv_cache", "weights"][:level]
        self.missing = [tag for tag in ("kv_cache", "weights") if tag in gone or tag in self.missing]

    def wake_up(self, tags: Sequence[str] | None) -> None:
        if not self.missing:
            return
        self.missing = [] if tags is None else [tag for tag in self.missing if tag not in tags]
        self.resume()

    # ---- what was read ----

    def take(self, batch: Outputs) -> None:
        """A batch was read. Several readers' batches come here in the order of their numbers."""
        assert batch.number > self._last, f"batch {batch.number} was read after {self._last}"
        self._last = batch.number
        assert batch.outputs or batch.stats is not None
        for output in batch.outputs:
            # An id may be used again: the first of that name that is open is the one that was sent first.
            named = [promise for promise in self.open if promise.request.request_id == output.request_id]
            assert named, f"nobody waits for {output}"
            named[0].take(output)
