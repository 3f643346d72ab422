"""Which requests run in the next step: first come, first served, chunks of prompts and decode tokens in one batch.

Every rank runs its own scheduler on the same messages in the same order and comes to the same decisions: nothing here
depends on time, chance or the order of a set.

Why nothing starves and nothing runs out of memory:

- A request starts only when a seat is free and all the pages that its prompt and `max_tokens` can ever need, beyond
  those that it shares, are free beyond what is promised to the running ones. From then on growing never fails, so
  nothing is ever put back.
- The waiting request that came first starts first, and nobody overtakes it. Running requests end, so its turn comes;
  with nothing running all pages are free, and a request that needs more than all was refused.
- Decode tokens come before prompts, and there are never more seats than tokens in a step's budget: every running
  request that is past its prompt gets its token in every step. What the others leave of the budget is then at least
  one token for the first unfinished prompt, which therefore gets done, and after it the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from engine import admission
from engine.config import EngineConfig
from engine.errors import SchedulerStalled
from engine.messages import ErrorKind, FinishReason, Request, RequestOutput
from engine.methods import attempt
from engine.pages import PagePool
from engine.sequence import Chunk, Key, Sequence


@dataclass(slots=True)
class Counters:
    """What the scheduler has done so far; accepted requests are finished, aborted or under way.

    `prompt_tokens` were computed, `prefix_cached_tokens` of prompts were found computed, for aborted requests too.
    """

    accepted: int = 0
    refused: int = 0
    finished: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    prefix_cached_tokens: int = 0
    generated_tokens: int = 0

    def all(self) -> dict[str, int]:
        """By name."""
        return asdict(self)


class Scheduler:
    """Waiting and running requests of one engine, and the pages that they own."""

    def __init__(self, config: EngineConfig) -> None:
        self.pages = PagePool(config.num_pages, config.page_size)
        self._config = config
        self._budget = config.max_batched_tokens
        self._seats = min(config.max_num_seqs, config.max_batched_tokens)
        self._live: dict[Key, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._held: list[Sequence] = []
        self._holding = False
        self._frozen = False
        self.counters = Counters()

    def has_work(self) -> bool:
        """Whether the next :meth:`batch` is not empty."""
        return self.under_way and not self._frozen

    @property
    def under_way(self) -> bool:
        """Whether there are requests besides those that came during a pause."""
        return bool(self._running or self._waiting)

    @property
    def waiting(self) -> int:
        """Requests that have been accepted and cannot run yet: no seat, too few pages, or a pause."""
        return len(self._waiting) + len(self._held)

    @property
    def running(self) -> int:
        """Requests that have started and not ended."""
        return len(self._running)

    def live(self) -> list[Key]:
        """The requests under way, in the order in which they were accepted."""
        return list(self._live)

    def add(self, request: Request, seed: int, client_index: int = 0) -> RequestOutput | None:
        """Accept a client's request, or return the output that says why not. `seed` is for one that brings none."""
        sequence, problem = self._prepared(request, seed, client_index)
        if sequence is None:
            self.counters.refused += 1
            return RequestOutput(request.request_id, [], FinishReason.ERROR, problem, ErrorKind.INVALID)
        if not self._startable(sequence) and self.waiting >= self._config.max_waiting:
            self.counters.refused += 1
            text = f"{self.waiting} requests are waiting already, as many as may (max_waiting)"
            return RequestOutput(request.request_id, [], FinishReason.ERROR, text, ErrorKind.BUSY)
        self.counters.accepted += 1
        self._live[sequence.key] = sequence
        if self._holding:
            self._held.append(sequence)
        else:
            self._waiting.append(sequence)
            self._start_waiting()
        return None

    def abort(self, request_ids: Iterable[str], client_index: int = 0) -> list[RequestOutput]:
        """End those of the client's requests that are under way, in the order of the ids. Other ids are ignored."""
        ended = []
        for request_id in request_ids:
            sequence = self._live.get((client_index, request_id))
            if sequence is not None:
                self._end(sequence)
                self.counters.aborted += 1
                ended.append(RequestOutput(request_id, [], FinishReason.ABORT))
        return ended

    def hold(self, *, freeze: bool) -> None:
        """From now on new requests wait aside; with `freeze`, those under way stay where they are, else they go on."""
        self._holding = True
        self._frozen = freeze

    def go_on(self) -> None:
        """Whoever waits aside joins the others; all go on."""
        self._holding = self._frozen = False
        self._waiting.extend(self._held)
        self._held = []
        self._start_waiting()

    def batch(self) -> list[Chunk]:
        """The chunks of the next step: decode tokens first, then prompts, each in the order of starting.

        Their pages are allocated. Raises :class:`SchedulerStalled`, or the :class:`engine.errors.PageError` behind it,
        if requests are under way but none of them can run.
        """
        if not self.has_work():
            return []
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
        if not chunks:
            self.check_pages()
            raise SchedulerStalled(f"{len(self._waiting)} requests wait, none runs, {self.pages.free} pages are free")
        return chunks

    def record(self, chunk: Chunk) -> None:
        """The step has put this chunk into the cache."""
        sequence = chunk.sequence
        if chunk.start < sequence.prompt_length:
            self.counters.prompt_tokens += chunk.count
            self.pages.name(sequence.table, self._names(sequence)[: chunk.end // self.pages.page_size])
        sequence.cached = chunk.end

    def append(self, chunk: Chunk, token: int) -> FinishReason | None:
        """The step has drawn this token after a recorded chunk. Why the request ends with it, or None if it goes on."""
        sequence = chunk.sequence
        sequence.tokens.append(token)
        self.counters.generated_tokens += 1
        if sequence.stops_at(token):
            reason = FinishReason.STOP
        elif len(sequence.tokens) >= sequence.capacity:
            reason = FinishReason.LENGTH
        else:
            return None
        self._end(sequence)
        self.counters.finished += 1
        return reason

    def check_pages(self) -> None:
        """Prove the page equation. Raises :class:`engine.errors.PageError` listing the pages that break it."""
        self.pages.check(sequence.table for sequence in self._running)

    def _prepared(self, request: Request, seed: int, client_index: int) -> tuple[Sequence | None, str | None]:
        """What the request becomes, or why it is refused. Whatever goes wrong here concerns this request alone."""
        if (client_index, request.request_id) in self._live:
            return None, f"request id {request.request_id!r} is already under way"
        prepared, failure = attempt(
            lambda: admission.problem(self._config, request) or Sequence.of(request, seed, client_index)
        )
        if isinstance(prepared, Sequence):
            return prepared, None
        return None, prepared or f"the request cannot be prepared: {failure}"

    def _startable(self, sequence: Sequence) -> bool:
        if self._holding or self._waiting:
            return False
        return len(self._running) < self._seats and self._fits(sequence)

    def _fits(self, sequence: Sequence) -> bool:
        return self.pages.fits(sequence.capacity, self._sharable(sequence))

    def _names(self, sequence: Sequence) -> list[bytes]:
        return sequence.page_names(self.pages.page_size) if self._config.prefix_caching else []

    def _sharable(self, sequence: Sequence) -> list[bytes]:
        """The names of the pages that need not be computed: the last token of the prompt is never in one of them."""
        return self._names(sequence)[: (sequence.prompt_length - 1) // self.pages.page_size]

    def _start_waiting(self) -> None:
        """Start whom seats and pages allow, so that whoever waits afterwards cannot run."""
        while self._waiting and len(self._running) < self._seats and self._fits(self._waiting[0]):
            sequence = self._waiting.popleft()
            shared = self.pages.reserve(sequence.table, sequence.capacity, self._sharable(sequence))
            sequence.cached = shared * self.pages.page_size
            self.counters.prefix_cached_tokens += sequence.cached
            self._running.append(sequence)

    def _end(self, sequence: Sequence) -> None:
        del self._live[sequence.key]
        for place in (self._running, self._waiting, self._held):
            if sequence in place:
                place.remove(sequence)
        self.pages.release(sequence.table)
        self._start_waiting()
