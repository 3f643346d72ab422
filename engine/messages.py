"""Wire records and sentinels.

Frames on `input` (client to rank 0, after the ROUTER's identity frame): one type byte (:class:`MessageType`), one
msgpack body (:class:`Add` or :class:`Abort`). Frames on `output` (rank 0 to client): one msgpack :class:`Outputs`, or
exactly one frame equal to :data:`ENGINE_CORE_DEAD`. Bodies are positional arrays; both directions count their messages
from 1, so that a lost or repeated one is an error and not silence. Before its first output, rank 0 sends one
:class:`Hello` back over `input`: when the client has it, the client's ROUTER knows rank 0's identity and a request can
no longer vanish.

Report lines (rank to launcher) and notice lines (launcher to rank) are JSON, one record a line.
"""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

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


PHASES = ("start", "relay", "group", "model", "join", "connect")
"""Start-up phases of a rank in their order; with one rank there is no relay, group or join."""


class MessageType(bytes, enum.Enum):
    """The type byte in front of a message to the engine."""

    ADD = b"\x00"
    ABORT = b"\x01"
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


class PromptEmbeds(msgspec.Struct, frozen=True, array_like=True):
    """A prompt as embeddings instead of tokens: `rows` rows of the model's hidden size, `dtype` as torch names it.

    `data` is the row-major little-endian content.
    """

    rows: int
    dtype: str
    data: bytes


class Request(msgspec.Struct, frozen=True, array_like=True):
    """One generation request: a prompt (token ids, or `embeds` and no ids) and how to continue it."""

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams = SamplingParams()
    embeds: PromptEmbeds | None = None


class Add(msgspec.Struct, frozen=True, array_like=True):
    """Body of an ADD message. `number` counts the client's messages from 1."""

    number: int
    request: Request


class Abort(msgspec.Struct, frozen=True, array_like=True):
    """Body of an ABORT message. Ids that the engine does not know are ignored."""

    number: int
    request_ids: list[str]


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """Rank 0's first message to the client, over `input`: this engine of this run is connected."""

    epoch: int
    engine_index: int


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural logarithms of probabilities at one position, before temperature, top-k and top-p.

    `logprob` is the sampled token's; `top` holds the likeliest (token id, log-probability) pairs, the likeliest first.
    """

    logprob: float
    top: list[tuple[int, float]]


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
    logprobs: list[TokenLogprobs] | None = None


class Outputs(msgspec.Struct, frozen=True, array_like=True):
    """All outputs of one step. `number` counts the engine's output messages from 1."""

    number: int
    engine_index: int
    outputs: list[RequestOutput]


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
    """What the launcher says on a lifeline. `fail` names who is to blame; a `stop` needs no reason."""

    notice: Literal["stop", "fail"]
    culprit: str = ""
    cause: str = ""
