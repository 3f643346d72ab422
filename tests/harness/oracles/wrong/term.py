"""The last output of a request is lost on its way to its stream, which then ends without a reason."""

from __future__ import annotations

import multiprocessing
from collections.abc import AsyncGenerator
from typing import Any

from engine.llm import AsyncLLM
from engine.messages import RequestOutput

_generate = AsyncLLM.generate


async def _without_end(self: AsyncLLM, *args: Any, **kwargs: Any) -> AsyncGenerator[RequestOutput, None]:
    async for output in _generate(self, *args, **kwargs):
        if output.finish_reason is None:
            yield output


if multiprocessing.current_process().name == "client":
    AsyncLLM.generate = _without_end  # type: ignore[method-assign]
