"""One run of the engine as a fresh program: spawned ranks, requests at readiness, a stop.

`python -m harness.bench.baselines.engine_run CASE` says when it is ready and, if anything was wrong, what; its exit
status is then 1. Every spawned rank executes this module again before it does anything else, since it is the main
program's: so delays and the seeded bug come into each process, as in any test that spawns.
"""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import sys
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from harness.bench.baselines.case import Case, Said
from harness.clock import SECOND, now, pause

if TYPE_CHECKING:
    from engine.llm import AsyncLLM

ANSWERS: dict[tuple[int, ...], list[int]] = {
    (1, 2, 3): [169, 96, 117, 102],
    (7, 8): [293, 170, 314, 122],
    (9, 99, 3): [369, 102, 37, 14],
}
"""What the model `tiny` must answer to each prompt."""

MARGIN = 0.2
"""Seconds for which requests are still asked when the hit is over."""


def main(case: Case) -> int:
    """Builds the engine, asks, stops; the exit status."""
    from engine.config import PROFILES, EngineConfig
    from engine.errors import EngineError
    from engine.llm import AsyncLLM

    # Ranks that import torch, two or three at once on a busy machine, may need more than the short profile's start-up.
    timeouts = structs.replace(PROFILES["short"], startup=PROFILES["default"].startup)
    config = EngineConfig(
        model="tiny",
        tp_size=case.tp,
        relay=case.relay,
        timeouts=timeouts,
        **case.config,  # type: ignore[arg-type]  # the engine checks its settings itself
    )
    try:
        llm = AsyncLLM(config)
    except EngineError as error:
        return _end(f"{type(error).__name__} in a start-up in which nothing is wrong: {error}")
    _say(Said(pids=llm.client.pids))
    return _end(asyncio.run(_served(llm, case)))


async def _served(llm: AsyncLLM, case: Case) -> str:
    """Asks all requests at once; if a process is to be hit, again and again until that is over. What is wrong."""
    from engine.errors import EngineDeadError

    until = now() + int(((case.hit.lasts + MARGIN) if case.hit is not None else 0.0) * SECOND)
    prompts = list(ANSWERS)[: case.requests]
    async with llm:
        while True:
            calls = [llm.is_paused()] if case.hit is not None else []
            ended = await asyncio.gather(*(_tokens(llm, one) for one in prompts), *calls, return_exceptions=True)
            dead = [error for error in ended if isinstance(error, EngineDeadError)]
            if dead and case.hit is None:
                return f"EngineDeadError although nothing was hit: {dead[0]}"
            for got, right in zip(ended, [*(ANSWERS[one] for one in prompts), *(False for _ in calls)], strict=True):
                if got != right and not isinstance(got, EngineDeadError):
                    return f"got {got!r}, expected {right!r}"
            if dead or now() >= until:
                return ""


async def _tokens(llm: AsyncLLM, prompt: tuple[int, ...]) -> list[int]:
    from engine.messages import SamplingParams

    tokens: list[int] = []
    async for output in llm.generate(list(prompt), SamplingParams(len(ANSWERS[prompt]))):
        tokens += output.token_ids
    return tokens


def _end(wrong: str) -> int:
    if wrong:
        _say(Said(wrong=wrong[:2000]))
    return 1 if wrong else 0


def _say(said: Said) -> None:
    sys.stdout.write(msgspec.json.encode(said).decode() + "\n")
    sys.stdout.flush()


def _prepare(case: Case) -> None:
    """In the client and in every rank, before the engine is imported."""
    _, _, rank = multiprocessing.current_process().name.rpartition(".rank")
    if rank.isdigit():
        pause(case.delays.get(int(rank), 0.0))
    if case.bug:
        from harness.seam import bug_canary

        bug_canary.wanted()
        importlib.import_module(case.bug)


if __name__ in ("__main__", "__mp_main__"):
    _CASE = msgspec.json.decode(sys.argv[1], type=Case)
    _prepare(_CASE)

if __name__ == "__main__":
    sys.exit(main(_CASE))
