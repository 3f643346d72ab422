"""Which requests run in the next step: first come, first served, chunks of prompts and decode tokens in one batch.

Every rank runs its own scheduler on the same messages in the same order and comes to the same decisions: nothing here
depends on time, chance or the order of a set.

Why nothing starves and nothing runs out of memory:

- A request starts only when a seat is free and all the pages that its prompt and `max_tokens` can ever need are free
  beyond what is promised to the running ones. From then on growing never fails, so nothing is ever put back.
- The waiting request that came first starts first, and nobody overtakes it. Running requests end, so its turn comes;
  with nothing running all pages are free, and a request that needs more than all was refused.
- Decode tokens come before prompts, and there are never more seats than tokens in a step's budget: every running
  request that is past its prompt gets its token in every step. What the others leave of the budget is then at least
  one token for the first unfinished prompt, which therefore gets done, and after it the next.
"""

from __future__ import annotations

from collections import deque

from engine import admission
from engine.config import EngineConfig
from engine.errors import SchedulerStalled
from engine.messages import ErrorKind, FinishReason, Request, RequestOutput
from engine.pages import PagePool
from engine.sequence import Chunk, Sequence


class Scheduler:
    """Waiting and running requests of one engine, and the pages that they own."""

    def __init__(self, config: EngineConfig) -> None:
        self.pages = PagePool(config.num_pages, config.page_size)
        self._config = config
        self._hidden = config.model_config.hidden
        self._budget = config.max_batched_tokens
        self._seats = min(config.max_num_seqs, config.max_batched_tokens)
        self._live: dict[str, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    def has_work(self) -> bool:
        """Whether requests are under way. If so, the next :meth:`batch` is not empty."""
        return bool(self._live)

    @property
    def waiting(self) -> int:
        """Requests that have been accepted and cannot run yet: no seat or too few pages."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests that have started and not ended."""
        return len(self._running)

    def add(self, request: Request, seed: int) -> RequestOutput | None:
        """Accept a request, or return the output that says why not. `seed` is for one that brings none."""
        problem = admission.problem(self._config, request)
        if request.request_id in self._live:
            problem = f"request id {request.request_id!r} is already under way"
        if problem is not None:
            return RequestOutput(request.request_id, [], FinishReason.ERROR, problem, ErrorKind.INVALID)
        sequence = Sequence.of(request, seed, self._hidden)
        if not self._startable(sequence) and len(self._waiting) >= self._config.max_waiting:
            text = f"{len(self._waiting)} requests are waiting already, as many as may (max_waiting)"
            return RequestOutput(request.request_id, [], FinishReason.ERROR, text, ErrorKind.BUSY)
        self._live[request.request_id] = sequence
        self._waiting.append(sequence)
        self._start_waiting()
        return None

    def abort(self, request_ids: list[str]) -> list[RequestOutput]:
        """End those of the requests that are under way, in the order of the ids. Other ids are ignored."""
        ended = []
        for request_id in request_ids:
            sequence = self._live.get(request_id)
            if sequence is not None:
                self._end(sequence)
                ended.append(RequestOutput(request_id, [], FinishReason.ABORT))
        return ended

    def batch(self) -> list[Chunk]:
        """The chunks of the next step: decode tokens first, then prompts, each in the order of starting.

        Their pages are allocated. Raises :class:`SchedulerStalled`, or the :class:`engine.errors.PageError` behind it,
        if requests are under way but none of them can run.
        """
        budget = self._budget
        chunks = []
        decoding = [sequence for sequence in self._running if sequence.decoding]
        prompts = [sequence for sequence in self._running if not sequence.decoding]
        for sequence in decoding + prompts:
            count = min(budget, len(sequence.tokens) - sequence.cached)
            if count == 0:
                break
            self.pages.grow(sequence.table, sequence.cached + count)
            chunks.append(Chunk(sequence, sequence.cached, count))
            budget -= count
        if not chunks and self._live:
            self.check_pages()
            raise SchedulerStalled(f"{len(self._waiting)} requests wait, none runs, {self.pages.free} pages are free")
        return chunks

    def record(self, chunk: Chunk) -> None:
        """The step has put this chunk into the cache."""
        chunk.sequence.cached = chunk.end

    def append(self, chunk: Chunk, token: int) -> FinishReason | None:
        """The step has drawn this token after a recorded chunk. Why the request ends with it, or None if it goes on."""
        sequence = chunk.sequence
        sequence.tokens.append(token)
        if sequence.stops_at(token):
            reason = FinishReason.STOP
        elif len(sequence.tokens) >= sequence.capacity:
            reason = FinishReason.LENGTH
        else:
            return None
        self._end(sequence)
        return reason

    def check_pages(self) -> None:
        """Prove the page equation. Raises :class:`engine.errors.PageError` listing the pages that break it."""
        self.pages.check(sequence.table for sequence in self._running)

    def _startable(self, sequence: Sequence) -> bool:
        return not self._waiting and len(self._running) < self._seats and self.pages.fits(sequence.capacity)

    def _start_waiting(self) -> None:
        """Start whom seats and pages allow, so that whoever waits afterwards cannot run."""
        while self._waiting and len(self._running) < self._seats and self.pages.fits(self._waiting[0].capacity):
            sequence = self._waiting.popleft()
            self.pages.reserve(sequence.table, sequence.capacity)
            self._running.append(sequence)

    def _end(self, sequence: Sequence) -> None:
        del self._live[sequence.request.request_id]
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        self.pages.release(sequence.table)
        self._start_waiting()
