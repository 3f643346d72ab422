"""A plugin for plans in tests: a front door that a global list holds for ever, so that nobody can drop it."""

from __future__ import annotations

import multiprocessing
from typing import Any

from engine.llm import AsyncLLM

_held: list[AsyncLLM] = []
_init = AsyncLLM.__init__


def _clinging(self: AsyncLLM, *args: Any, **kwargs: Any) -> None:
    _init(self, *args, **kwargs)
    _held.append(self)


if multiprocessing.current_process().name == "client":
    AsyncLLM.__init__ = _clinging  # type: ignore[method-assign]
