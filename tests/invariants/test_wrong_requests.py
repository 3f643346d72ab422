"""I28: requests that are wrong, or fail in preparation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine import embeds
from engine.codec import Array, packed
from engine.errors import EngineGenerateError
from engine.messages import (
    ErrorKind,
    FinishReason,
    MessageType,
    Request,
    RequestOutput,
    SamplingParams,
    engine_identity,
)
from engine.model import reference
from tests.engine.forks import replace
from tests.invariants import Change, invariant
from tests.invariants.books import require_nothing_left, with_books
from tests.invariants.callers import BOUND, PROMPT, Caller, both_kinds, serving, tokens_of


def unreadable(caller: Caller, request: Any) -> None:
    """Put an ADD on `input` as a client of another version might, with a body that the engine cannot read."""
    resources = caller.client._resources
    body = packed([resources.traffic.sent + 1, request, 0])
    resources.plain_input.send_multipart([engine_identity(0), MessageType.ADD.value, body])
    resources.sent()


def wrong_requests() -> dict[str, Request]:
    return {
        "empty": Request("empty", []),
        "endless": Request("endless", PROMPT, SamplingParams(0)),
        "long": Request("long", PROMPT, SamplingParams(10_000)),
        "strange": Request("strange", [1, 384]),
        "hot": Request("hot", PROMPT, SamplingParams(temperature=float("nan"))),
        "double": Request("double", PROMPT, embeds=Array.of(np.zeros((2, 96)))),
        "narrow": Request("narrow", [], embeds=Array.of(np.zeros((2, 5)))),
        "infinite": Request("infinite", [], embeds=Array.of(np.full((2, 96), np.inf))),
    }


@invariant(
    "I28",
    breaks=(
        Change("engine/ports.py", "self._answer_unreadable(kind, frames[0], error)", "raise"),
        Change(
            "engine/admission.py",
            "return _length_problem(config, request) or _content_problem(config, request) or "
            "_params_problem(config, request)",
            "return _length_problem(config, request)",
        ),
        Change(
            "engine/client/sending.py",
            "except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:",
            "except ZeroDivisionError as error:",
        ),
    ),
    kin=("I1",),
)
@both_kinds
def test_a_wrong_request_fails_alone(kind: str) -> None:
    with serving(kind, 2, with_books) as caller:
        caller.add("well", 16)
        wrong = wrong_requests()
        for request in wrong.values():
            caller.begin_add(request).result(BOUND)
        for odd in ([2**70], ["x"], [1.5]):
            with pytest.raises(EngineGenerateError, match="request 'odd' cannot be sent"):
                caller.add("odd", prompt=odd)  # type: ignore[arg-type]
        unreadable(caller, ["unreadable", "no list of tokens"])
        told = caller.outputs_of("well", "unreadable", *wrong)
        assert tokens_of(told.pop("well")) == reference.greedy("tiny", PROMPT, 16)
        for name, outputs in told.items():
            (refusal,) = outputs
            assert (refusal.finish_reason, refusal.error_kind) == (FinishReason.ERROR, ErrorKind.INVALID), name
            assert refusal.error
        caller.serve()
        require_nothing_left(caller)


@invariant(
    "I28",
    breaks=Change("engine/methods.py", "except Exception as error:\n    return None, said(error)", ""),
    kin=("I31",),
)
@both_kinds
def test_a_request_whose_preparation_fails_fails_alone(kind: str) -> None:
    def before(role: str) -> None:
        with_books(role)
        read: Callable[..., Any] = embeds.read

        def failing(rows: Any) -> Any:
            if rows.shape[0] == 3:
                raise ArithmeticError("three is too many")
            return read(rows)

        replace(embeds, "read", failing)

    with serving(kind, 2, before) as caller:
        caller.add("well", 16)
        for rows, name in ((2, "good"), (3, "bad")):
            request = Request(name, [], SamplingParams(4), Array.of(np.zeros((rows, 96))))
            caller.begin_add(request).result(BOUND)
        told = caller.outputs_of("well", "good", "bad")
        assert tokens_of(told["well"]) == reference.greedy("tiny", PROMPT, 16)
        assert len(tokens_of(told["good"])) == 4
        text = "the request cannot be prepared: three is too many"
        assert told["bad"] == [RequestOutput("bad", [], FinishReason.ERROR, text, ErrorKind.INVALID)]
        require_nothing_left(caller)
