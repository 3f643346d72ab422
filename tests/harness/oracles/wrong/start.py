"""A start that fails is told as any other failure: the caller cannot see that nothing was started."""

from __future__ import annotations

import multiprocessing
from typing import Any

from engine.errors import EngineDeadError, StartupError
from engine.llm import AsyncLLM

_init = AsyncLLM.__init__


def _untyped(self: AsyncLLM, *args: Any, **kwargs: Any) -> None:
    try:
        _init(self, *args, **kwargs)
    except StartupError as error:
        raise EngineDeadError(error.culprit, error.cause) from None


if multiprocessing.current_process().name == "client":
    AsyncLLM.__init__ = _untyped  # type: ignore[method-assign]
