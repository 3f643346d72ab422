"""poison: a request that nobody can serve; it must be refused by itself, and everybody else served."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

from harness.faults.caller import Caller
from harness.faults.moments import TokenFault

What = Literal[
    "empty",
    "token",
    "negative",
    "long",
    "many_tokens",
    "no_tokens",
    "types",
    "nothing",
    "text",
    "number",
    "deep",
    "nan",
    "array",
    "shape",
    "not_finite",
    "objects",
    "same_id",
]

_GOOD = (1, 2, 3)
_HUGE = 4_000
"""Tokens of a prompt, eight times as many as the model takes. More would only try how much a busy machine can copy."""


def _deep() -> list[Any]:
    nested: list[Any] = []
    for _ in range(50_000):
        nested = [nested]
    return nested


def _zeros(*shape: int) -> Any:
    import numpy as np

    return np.zeros(shape)


def _objects() -> Any:
    import numpy as np

    return np.array([object()])


_PROMPTS: dict[What, Callable[[], Any]] = {
    "empty": lambda: [],
    "token": lambda: [1, 1 << 40],
    "negative": lambda: [1, -1],
    "long": lambda: [1] * _HUGE,
    "types": lambda: ["one", None, 1.5],
    "nothing": lambda: None,
    "text": lambda: "one two",
    "number": lambda: 7,
    "deep": _deep,
    "array": lambda: _zeros(_HUGE, 96),
    "shape": lambda: _zeros(3, 5, 7),
    "not_finite": lambda: _zeros(3, 96) + math.inf,
    "objects": _objects,
}
"""The prompts, by what is wrong with them; all others have a good one."""

_PARAMS: dict[What, dict[str, Any]] = {
    "many_tokens": {"max_tokens": 1 << 70},
    "no_tokens": {"max_tokens": 0},
    "nan": {"temperature": float("nan")},
}


class Poison(TokenFault, frozen=True, forbid_unknown_fields=True, tag="poison", tag_field="kind"):
    """A further request is sent while ``request`` waits with ``after_tokens`` tokens.

    ``what`` is wrong with it: of its prompt, that it is ``empty``, ``long``, of wrong ``types``, ``nothing``, a
    ``text``, a ``number``, too ``deep``, that it has an unknown or ``negative`` ``token``; of a prompt of embeddings,
    that the ``array`` is huge, of another ``shape``, ``not_finite``, of ``objects``; that it wants ``many_tokens`` or
    ``no_tokens``, or a temperature that is ``nan``; or that its id is that of ``request``.
    """

    what: What = "empty"

    def strike(self, caller: Caller) -> None:
        caller.fired()
        prompt = _PROMPTS.get(self.what, lambda: list(_GOOD))()
        caller.poison(prompt, _PARAMS.get(self.what, {}), same_id=self.what == "same_id")

    def __str__(self) -> str:
        return f"poison ({self.what.replace('_', ' ')}) when {self._when()}"
