"""The tokens that must come, and whatever else there is to read."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from engine.errors import EngineDeadError
from engine.messages import RequestOutput
from engine.model import reference
from tests.invariants.callers import BOUND, PROMPT, Caller


@functools.cache
def _golden(count: int, prompt: tuple[int, ...]) -> list[int]:
    return reference.greedy("tiny", prompt, count)


def golden(count: int, prompt: Sequence[int] = PROMPT) -> list[int]:
    """The tokens that must follow a prompt."""
    return _golden(count, tuple(prompt))


def rest_of(caller: Caller) -> tuple[list[RequestOutput], EngineDeadError]:
    """What can still be read, and the error that comes behind it."""
    outputs: list[RequestOutput] = []
    while True:
        read = caller.begin_read()
        try:
            outputs += read.result(BOUND).outputs
        except EngineDeadError as error:
            return outputs, error
