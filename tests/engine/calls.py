"""Utility calls of a core in this process, each in a step of its own."""

from __future__ import annotations

from typing import Any

from engine.messages import Request, SamplingParams, UtilityOutput
from tests.engine.inline import Inline


def request(name: str, count: int = 3) -> Request:
    return Request(name, [1, 2, 3], SamplingParams(count))


def called(inline: Inline, method: str, *args: Any, client: int = 0) -> Any:
    """What a call in a step of its own returns."""
    reply = replied(inline, method, *args, client=client)
    assert reply.failure is None, reply.failure
    return reply.result


def refused(inline: Inline, method: str, *args: Any) -> str:
    """The text with which a call in a step of its own fails."""
    reply = replied(inline, method, *args)
    assert reply.result is None
    assert reply.failure is not None
    return reply.failure


def replied(inline: Inline, method: str, *args: Any, client: int = 0) -> UtilityOutput:
    call = inline.call(method, *args, client=client)
    inline.step()
    (reply,) = inline.replies[client, call]
    return reply
