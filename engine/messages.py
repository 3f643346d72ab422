"""Wire records and sentinels.

Bodies are msgpack arrays and a checksum, made and read by :mod:`engine.codec`; arrays of numbers in them may travel as
aux frames behind the body. The links of one engine and the frames on them:

- `startup` (rank 0 to the launcher and back): one record of :data:`Startup` each, HELLO, INIT, READY.
- `input` (client to rank 0, after the ROUTER's identity frame): a type byte (:class:`MessageType`), a body
  (:class:`Add`, :class:`Abort` or :class:`Utility`), aux frames. Back over it rank 0 sends one :class:`Welcome`: when
  the client has it, the client's ROUTER knows rank 0's identity and a message can no longer vanish.
- `output` (rank 0 to client): an :class:`Outputs` body and aux frames, or exactly one frame equal to
  :data:`ENGINE_CORE_DEAD`.

A second client has `input.1` and `output.1`, and so on. On each of these links both directions count their messages
from 1, so that a lost or repeated one is an error and not silence.

Report lines (rank to launcher) and notice lines (launcher to rank) are JSON, one record a line.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from engine.codec import Array

ENGINE_CORE_DEAD = b"ENGINE_CORE_DEAD"
"""The dead frame: the last thing rank 0 says when it dies of an exception."""

CLIENT_ROLE = "client"
"""The role of the process that owns the client."""


def rank_role(rank: int, engine_index: int = 0) -> str:
    """The role of a rank process, as in ``dp0.rank1``."""
    return f"dp{engine_index}.rank{rank}"


def engine_identity(engine_index: int) -> bytes:
    """The identity of an engine on the client's ROUTER: its index as two bytes, little endian."""
    return engine_index.to_bytes(2, "little")


def client_link(link: str, client_index: int) -> str:
    """The name of a client's own link: ``output`` for the first client, ``output.1`` for the second."""
    return f"{link}.{client_index}" if client_index else link


PHASES = ("start", "hello", "relay", "group", "model", "join", "connect")
"""Start-up phases of a rank in their order; `hello` and `connect` are rank 0's, and with one rank there is no relay,
group or join."""

NOTIFICATION_CALL_ID = -1
"""The call id of what an engine says unasked; calls are numbered from 0 up."""


class MessageType(bytes, enum.Enum):
    """The type byte in front of a message to the engine."""

    ADD = b"\x00"
    ABORT = b"\x01"
    UTILITY = b"\x03"
    STOP = b"\x06"
    """Never on `input`: on a relay that sends raw messages, rank 0's order to leave."""


class FinishReason(enum.StrEnum):
    """Why a request has ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class ErrorKind(enum.StrEnum):
    """Why a request was refused."""

    INVALID = "invalid"
    """The request itself: it would be refused again."""
    BUSY = "busy"
    """Back-pressure: the engine has as many requests waiting as it may; later it can be accepted."""


class SamplingParams(msgspec.Struct, frozen=True, array_like=True):
    """How tokens are chosen, and when to stop.

    `temperature` 0 is greedy. `top_k` 0 and `top_p` 1 leave all tokens in. `seed` None: one is derived from the run's
    epoch and the message's number. `stop_token_ids` end the request with reason `stop`, the stop token included.
    `logprobs` is how many of the likeliest tokens are told with each sampled one; None tells nothing at all.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop_token_ids: list[int] = []
    logprobs: int | None = None


class Request(msgspec.Struct, frozen=True, array_like=True):
    """One generation request: a prompt and how to continue it.

    The prompt is token ids, or `embeds` and no ids: a row of the model's hidden size for each token, as a numpy array,
    a torch tensor or an :class:`engine.codec.Array` of floating-point numbers.
    """

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams = SamplingParams()
    embeds: Array | None = None


class Add(msgspec.Struct, frozen=True, array_like=True):
    """Body of an ADD message. `number` counts the client's messages from 1."""

    number: int
    request: Request
    client_index: int = 0


class Abort(msgspec.Struct, frozen=True, array_like=True):
    """Body of an ABORT message. Ids that this client has no request of are ignored."""

    number: int
    request_ids: list[str]
    client_index: int = 0


class Utility(msgspec.Struct, frozen=True, array_like=True):
    """Body of a UTILITY message: a call of an engine's method. Exactly one reply carries `call_id`."""

    number: int
    client_index: int
    call_id: int
    method: str
    args: list[Any]


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """HELLO on `startup`: rank 0 of this engine is there, with this version and this digest of its configuration."""

    epoch: int
    engine_index: int
    pid: int
    version: str
    digest: str


class Init(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """INIT on `startup`: the addresses of the clients' links, by client index."""

    epoch: int
    inputs: list[str]
    outputs: list[str]


class EngineReady(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """READY on `startup`: the ranks have joined, and every client has been sent its :class:`Welcome`."""

    epoch: int
    engine_index: int


Startup = Hello | Init | EngineReady
"""What `startup` carries."""


class Welcome(msgspec.Struct, frozen=True, array_like=True):
    """Rank 0's first message to each client, over `input`: this engine of this run is connected, and what it can do.

    `max_length` is in tokens, prompt and answer together; the cache has `num_pages` pages of `page_size` tokens.
    """

    epoch: int
    engine_index: int
    client_index: int
    max_length: int
    num_pages: int
    page_size: int


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural logarithms of probabilities at one position, before temperature, top-k and top-p.

    `logprob` is the sampled token's; `top` holds the likeliest (token id, log-probability) pairs, the likeliest first.
    """

    logprob: float
    top: list[tuple[int, float]]


class Logprobs(msgspec.Struct, frozen=True, array_like=True):
    """The log-probabilities of n tokens as arrays; a sequence of :class:`TokenLogprobs`.

    `sampled` (n) are the tokens' own, `token_ids` (n, k) the likeliest tokens, the likeliest first, and `values` (n, k)
    theirs; float64 and int64.
    """

    sampled: Array
    token_ids: Array
    values: Array

    def __len__(self) -> int:
        return self.sampled.shape[0]

    def __getitem__(self, index: int) -> TokenLogprobs:
        ids, values = self.token_ids.numpy()[index].tolist(), self.values.numpy()[index].tolist()
        return TokenLogprobs(float(self.sampled.numpy()[index]), list(zip(ids, values, strict=True)))

    def __iter__(self) -> Iterator[TokenLogprobs]:
        return (self[index] for index in range(len(self)))


class RequestOutput(msgspec.Struct, frozen=True, array_like=True):
    """What one step did for one request.

    `finish_reason` is None while it goes on; `error` and `error_kind` explain reason `error`. `logprobs` has one entry
    for each of `token_ids` if they were asked for.
    """

    request_id: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    error: str | None = None
    error_kind: ErrorKind | None = None
    logprobs: Logprobs | None = None


class UtilityOutput(msgspec.Struct, frozen=True, array_like=True):
    """The reply to a utility call: `failure` is None and `result` what the method returned, or why it failed."""

    call_id: int
    failure: str | None = None
    result: Any = None


class SchedulerStats(msgspec.Struct, frozen=True, array_like=True):
    """How full the engine is after a step: requests waiting and running, pages that nobody owns, steps so far."""

    waiting: int
    running: int
    free_pages: int
    steps: int


class Outputs(msgspec.Struct, frozen=True, array_like=True):
    """What one step has for one client: outputs of requests, the reply to one call, how full the engine is.

    `number` counts the engine's messages to this client from 1.
    """

    number: int
    engine_index: int
    outputs: list[RequestOutput]
    utility: UtilityOutput | None = None
    stats: SchedulerStats | None = None


class PhaseReport(msgspec.Struct, frozen=True, tag_field="report", tag="phase"):
    """A rank enters a start-up phase."""

    phase: str


class ReadyReport(msgspec.Struct, frozen=True, tag_field="report", tag="ready"):
    """A rank is ready: how many ranks joined the relay, in how many rounds and milliseconds."""

    joined: int
    rounds: int
    milliseconds: float


class FailedReport(msgspec.Struct, frozen=True, tag_field="report", tag="failed"):
    """A rank is about to leave with `code`; `culprit` is the role it blames, empty if it cannot tell.

    `begun`, `since` and `inside` are its place among its collectives (:class:`engine.relay.frames.Place`), `at` is when
    it failed (monotonic seconds).
    """

    code: int
    culprit: str
    cause: str
    begun: int = 0
    since: float = 0.0
    inside: bool = False
    at: float = 0.0


Report = PhaseReport | ReadyReport | FailedReport


class Notice(msgspec.Struct, frozen=True):
    """What the launcher says on a lifeline.

    `fail` names who is to blame. `stop` gives rank 0 `limit` seconds to leave; with `drain` it first finishes what is
    under way, else it aborts that. What is under way goes up to message `said` of client 0, the last that it sent
    before: a lifeline is faster than a socket. `gone`: client `client` has left, and what it owned is to be dropped.
    """

    notice: Literal["stop", "fail", "gone"]
    culprit: str = ""
    cause: str = ""
    limit: float | None = None
    drain: bool = False
    said: int = 0
    client: int = 0
