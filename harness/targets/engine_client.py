"""The client program of every run: build the engine, ask what the plan asks, note what comes back, stop.

It is an ordinary user of `engine.llm.AsyncLLM`. What it notes are marks in its history: start-up, each request's life,
and, after a death, whether every later call repeats the same error. It never polls and arms no timer, but for a
request that the plan wants sent later: budgets live outside, and a timer here would stand in the way of every proof.
"""

from __future__ import annotations

import asyncio
import os

import msgspec

from engine.errors import EngineDeadError
from engine.launch import ProcessFactory
from engine.llm import AsyncLLM
from engine.messages import SamplingParams
from harness import plan as plans
from harness.plan import Plan
from harness.seam.site import Seam, active
from harness.targets.engine import config_of


def main(plan_json: bytes, folder: str, *, factory: ProcessFactory) -> int:
    """Runs the workload of a plan; exit status 0 whatever the engine did, since that is for oracles to judge."""
    seam = active()
    if seam is None:
        raise RuntimeError("the client program runs only with a seam; start it through a world")
    plan = plans.from_json(plan_json)
    seam.mark("startup", kind="begin")
    try:
        llm = AsyncLLM(config_of(plan, folder), factory=factory)
    except EngineDeadError as error:
        _mark_error(seam, "startup", "failed", error)
        return 0
    seam.mark("startup", kind="ready")
    asyncio.run(_serve(seam, plan, llm))
    return 0


async def _serve(seam: Seam, plan: Plan, llm: AsyncLLM) -> None:
    tasks: list[asyncio.Task[None]] = []
    for index, request in enumerate(plan.workload.requests):
        if request.at == "previous" and tasks:
            await asyncio.wait(tasks[-1:])
        if request.after:
            await asyncio.sleep(request.after)
        tasks.append(asyncio.create_task(_ask(seam, plan, llm, index), name=f"r{index}"))
    await asyncio.gather(*tasks)
    await _check_latch(seam, llm)
    seam.mark("shutdown", kind="begin")
    llm.shutdown()
    seam.mark("shutdown", kind="done")


async def _ask(seam: Seam, plan: Plan, llm: AsyncLLM, index: int) -> None:
    """One request from its sending to its end, each token a mark."""
    request = plan.workload.requests[index]
    seam.mark("request.sent", number=index, text=f"r{index}")
    reason = "none"
    try:
        async for output in llm.generate(list(request.prompt), SamplingParams(request.max_tokens), f"r{index}"):
            for token in output.token_ids:
                seam.mark("request.token", number=index, value=token, text=f"r{index}")
                seam.recorder.progress()
            if output.finish_reason is not None:
                reason = str(output.finish_reason)
                seam.mark("request.finished", kind=reason, number=index, text=f"r{index}")
    except Exception as error:
        _mark_error(seam, "request.failed", type(error).__name__, error, index)
        return
    if reason == "none":
        seam.mark("request.finished", kind=reason, number=index, text=f"r{index}")


async def _check_latch(seam: Seam, llm: AsyncLLM) -> None:
    """Once dead, always dead: health and a new request, each twice, repeat the error. Harmless on a live engine."""
    try:
        llm.check_health()
    except Exception as first:
        for attempt in range(4):
            try:
                if attempt % 2:
                    async for _ in llm.generate([1], SamplingParams(1), f"after-death-{attempt}"):
                        pass
                else:
                    llm.check_health()
            except Exception as error:
                seam.mark("latched", kind=type(error).__name__, ok=str(error) == str(first), text=str(error))
            else:
                seam.mark("latched", kind="no error", ok=False, text="a call succeeded after the engine's death")


def _mark_error(seam: Seam, site: str, kind: str, error: Exception, number: int = -1) -> None:
    """``text`` is 'type|culprit|cause', the culprit empty for an error that names none."""
    culprit = getattr(error, "culprit", "")
    cause = getattr(error, "cause", str(error))
    seam.mark(site, kind=kind, number=number, ok=False, text=f"{type(error).__name__}|{culprit}|{cause}")


def reference(requests: bytes, fds: list[int]) -> int:
    """Writes the reference tokens of (model, prompt, max_tokens) triples to the first descriptor, as msgpack."""
    from engine.model.reference import greedy

    triples = msgspec.msgpack.decode(requests, type=list[tuple[str, list[int], int]])
    tokens = [greedy(model, prompt, max_tokens) for model, prompt, max_tokens in triples]
    os.write(fds[0], msgspec.msgpack.encode(tokens))
    return 0
