"""A request under way, and the part of it that one step computes."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine import admission, embeds
from engine.messages import Request
from engine.pages import PageTable, page_names

Key = tuple[int, str]
"""A request's name: its client's index and the id that this client gave it."""

PLACEHOLDER = 0
"""Stands in the list of tokens where the prompt is an embedding."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One accepted request of a client: its tokens so far, of which the first `cached` are in the key-value cache.

    `seed` is of 64 bits. `rows` are the prompt's embeddings, (prompt_length, hidden), None for a prompt of tokens.
    """

    client_index: int
    request: Request
    seed: int
    tokens: list[int]
    prompt_length: int
    rows: embeds.Rows | None
    table: PageTable
    cached: int = 0
    _names: list[bytes] | None = None
    _stop_tokens: frozenset[int] | None = None

    @classmethod
    def of(cls, request: Request, seed: int, client_index: int) -> Sequence:
        """A request that has passed :func:`engine.admission.problem`; its own seed, if it has one, comes first."""
        length = admission.prompt_length(request)
        return cls(
            client_index=client_index,
            request=request,
            seed=seed if request.params.seed is None else request.params.seed,
            tokens=[PLACEHOLDER] * length if request.embeds is not None else list(request.prompt_ids),
            prompt_length=length,
            rows=None if request.embeds is None else embeds.read(request.embeds),
            table=PageTable(request.request_id),
        )

    @property
    def key(self) -> Key:
        """What tells it from all others under way."""
        return self.client_index, self.request.request_id

    @property
    def capacity(self) -> int:
        """The most tokens that can ever be in the cache for this request."""
        return self.prompt_length + self.request.params.max_tokens

    def page_names(self, page_size: int) -> list[bytes]:
        """The names of the prompt's full pages; none for embeddings."""
        # Made when it is about to start: thousands may wait.
        if self._names is None:
            prompt = [] if self.rows is not None else self.tokens[: self.prompt_length]
            self._names = page_names(prompt, page_size)
        return self._names

    def stops_at(self, token: int) -> bool:
        """Whether the request ends with this token."""
        # Made by the first token: thousands may wait, and only a few run.
        if self._stop_tokens is None:
            self._stop_tokens = frozenset(self.request.params.stop_token_ids)
        return token in self._stop_tokens

    @property
    def decoding(self) -> bool:
        """Whether the whole prompt is in the cache."""
        return self.cached >= self.prompt_length


@dataclass(slots=True, eq=False)
class Chunk:
    """The `count` tokens of a sequence from position `start` on: what one step computes of it.

    Either all in the prompt, or one that was generated before. `pages` hold all tokens up to the chunk's end.
    """

    sequence: Sequence
    start: int
    count: int
    token_ids: list[int] = field(init=False)
    rows: embeds.Rows | None = field(init=False)
    pages: list[int] = field(init=False)

    def __post_init__(self) -> None:
        sequence, end = self.sequence, self.end
        self.token_ids = sequence.tokens[self.start : end]
        self.rows = None if sequence.rows is None or sequence.decoding else sequence.rows[self.start : end]
        self.pages = list(sequence.table.pages)

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.start + self.count

    @property
    def sampled(self) -> bool:
        """Whether the next token is drawn after this chunk: it is decode, or the last one of its prompt."""
        return self.end == len(self.sequence.tokens)
