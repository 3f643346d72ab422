"""One run the way the seed report's tests do it: a fresh program, spawned ranks, one request, a clean stop.

`python -m harness.bench.seed_way` ends with exit status 0 if the request got its four tokens. No torch in this process,
no seam, no proxy, no zygote: what a maintainer would write without a harness.
"""

from __future__ import annotations

import asyncio
import sys

from engine.config import PROFILES, EngineConfig
from engine.llm import AsyncLLM
from engine.messages import SamplingParams

PROMPT = (1, 2, 3)
MAX_TOKENS = 4


async def _ask(llm: AsyncLLM) -> int:
    tokens = 0
    async with llm:
        async for output in llm.generate(list(PROMPT), SamplingParams(MAX_TOKENS)):
            tokens += len(output.token_ids)
    return tokens


def main() -> int:
    """Builds the engine at TP = 2, asks one request, stops; the exit status."""
    llm = AsyncLLM(EngineConfig(model="tiny", tp_size=2, relay="handshake", timeouts=PROFILES["default"]))
    return 0 if asyncio.run(_ask(llm)) == MAX_TOKENS else 1


if __name__ == "__main__":
    sys.exit(main())
