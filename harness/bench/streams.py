"""What is streamed in the client benchmark: requests, the answers to them in their order, and the reader's count.

Requests are answered in turns, one token of one request at a time, so that all of them are under way together. The echo
engine and the bare senders take the same turns, which is why all of them send equal bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle

from msgspec import Struct

from engine.messages import FinishReason, Outputs, Request, RequestOutput, SamplingParams
from harness.bench import BenchError
from harness.clock import SECOND, now

ECHOED = 8
"""Tokens of each prompt that come back, again and again."""

VOCABULARY = 32_000
"""Token ids are below this, as those of a model are."""


class Batch(Struct, frozen=True):
    """So many requests at once, of so many tokens each; every token is a record and a message of its own."""

    streams: int
    tokens: int

    @property
    def messages(self) -> int:
        """How many messages the answers are in all."""
        return self.streams * self.tokens

    def requests(self) -> list[Request]:
        """Prompts are the number of streams, then the tokens to be echoed."""
        return [
            Request(
                f"stream-{index}",
                [self.streams, *((97 * index + 1009 * position) % VOCABULARY for position in range(ECHOED))],
                SamplingParams(max_tokens=self.tokens),
            )
            for index in range(self.streams)
        ]


@dataclass(slots=True, eq=False)
class _Stream:
    client_index: int
    request_id: str
    tokens: Iterator[int]
    left: int


class Turns:
    """Requests and whose turn it is.

    Those that come are held until there are as many as the first number of the last one's prompt says, and then begin
    together: nothing is answered while others are still on their way.
    """

    def __init__(self) -> None:
        self._held: list[_Stream] = []
        self._running: deque[_Stream] = deque()

    def __bool__(self) -> bool:
        return bool(self._running)

    def add(self, request: Request, client_index: int = 0) -> None:
        """Raises ValueError for a request that cannot be echoed."""
        count, *tokens = request.prompt_ids or [0]
        if not tokens or request.params.max_tokens < 1:
            raise ValueError("expected a number of streams and tokens to be echoed, and max_tokens of at least 1")
        self._held.append(_Stream(client_index, request.request_id, cycle(tokens), request.params.max_tokens))
        if len(self._held) >= count:
            self._running.extend(self._held)
            self._held.clear()

    def take(self) -> tuple[int, RequestOutput]:
        """The next token, and the index of the client whose it is. Raises IndexError if nothing is under way."""
        stream = self._running[0]
        stream.left -= 1
        if stream.left:
            self._running.rotate(-1)
            return stream.client_index, RequestOutput(stream.request_id, [next(stream.tokens)])
        self._running.popleft()
        return stream.client_index, RequestOutput(stream.request_id, [next(stream.tokens)], FinishReason.LENGTH)

    def end(self, client_index: int | None = None, request_ids: list[str] | None = None) -> list[tuple[int, str]]:
        """End those requests of that client, or all of all: client index and request id of what was ended."""
        ended = [
            stream
            for stream in (*self._held, *self._running)
            if client_index in (None, stream.client_index) and (request_ids is None or stream.request_id in request_ids)
        ]
        self._held = [stream for stream in self._held if stream not in ended]
        self._running = deque(stream for stream in self._running if stream not in ended)
        return [(stream.client_index, stream.request_id) for stream in ended]


class Tally:
    """The reader's count of a batch, stream by stream. The clock runs from the first message to the last."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._tokens = {request.request_id: 0 for request in batch.requests()}
        self._unfinished = batch.streams
        self._messages = 0
        self._first = self._last = 0

    @property
    def done(self) -> bool:
        """Whether every stream has come to its end."""
        return not self._unfinished

    def count(self, outputs: Outputs) -> None:
        """One message has been read."""
        if not self._messages:
            self._first = now()
        self._messages += 1
        for output in outputs.outputs:
            self._tokens[output.request_id] += len(output.token_ids)
            if output.finish_reason is not None:
                self._unfinished -= 1
                self._last = now()

    def messages_per_second(self) -> float:
        """Raises BenchError if anything was lost, or came twice."""
        self._check()
        return (self._messages - 1) * SECOND / (self._last - self._first)

    def tokens_per_second(self) -> float:
        """The same for tokens."""
        return self.messages_per_second() * sum(self._tokens.values()) / self._messages

    def _check(self) -> None:
        for request_id, tokens in self._tokens.items():
            if tokens != self._batch.tokens:
                raise BenchError(f"client: {request_id} came to {tokens} tokens, expected {self._batch.tokens}")
        if self._messages != self._batch.messages:
            raise BenchError(f"client: {self._messages} messages came, expected {self._batch.messages}")
