"""The client program of every run: build the engine, ask what the plan asks, note what comes back, stop.

It is an ordinary user of `engine.llm.AsyncLLM`, and the one whose hand does the client faults of a plan. What it notes
are marks in its history: start-up, each request's life, and, after a death, whether every later call repeats the same
error. It never polls and arms no timer, but for a request that the plan wants sent later and for a reader that the plan
wants slow: budgets live outside, and a timer here would stand in the way of every proof.

Every plan whose engine lives ends with a demand. When every stream is over, what stands of the faults is healed; then
one more request must be served, and two utilities answered: the engine holds no request and no page any more. Health is
noted where it costs nothing to ask: when the engine is ready, when an error comes, before and after that request.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import select
import weakref
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from engine.errors import EngineError, EngineStalledError
from engine.launch import ProcessFactory
from engine.llm import AsyncLLM
from engine.messages import RequestOutput, SamplingParams
from harness import plan as plans
from harness.clock import now
from harness.faults import OnClient
from harness.faults.moments import Moment, Where
from harness.plan import Plan
from harness.seam.flags import HEAL
from harness.seam.site import Seam, active
from harness.targets.engine import config_of
from harness.targets.engine_caller import Caller
from harness.targets.engine_reader import Reader, mark_error

TURNS = 12
"""Turns of the event loop within which a stream that nothing holds is closed, and a client that nothing holds, gone."""


CANARY_TOKENS = 2
"""Tokens that the request of the demand asks for at most."""

CANARIES = 3
"""How often the demand asks while health is still red when its request has been served."""


def main(plan_json: bytes, folder: str, *, factory: ProcessFactory) -> int:
    """Runs the workload of a plan; exit status 0 whatever the engine did, since that is for oracles to judge."""
    seam = active()
    if seam is None:
        raise RuntimeError("the client program runs only with a seam; start it through a world")
    plan = plans.from_json(plan_json)
    armed = [_Armed(seam, plan, index, fault) for index, fault in enumerate(plan.faults) if isinstance(fault, OnClient)]
    config = config_of(plan, folder)
    seam.mark("startup", kind="begin")
    try:
        program = Program(seam, plan, armed, AsyncLLM(config, factory=factory))
    except Exception as error:  # which of them are right is for oracles to judge
        mark_error(seam, "startup", "failed", error)
        return 0
    seam.mark("startup", kind="ready", value=config.max_num_seqs + config.max_waiting)
    asyncio.run(program.run())
    return 0


class _Armed:
    """One client fault that waits for its moment."""

    def __init__(self, seam: Seam, plan: Plan, index: int, fault: OnClient) -> None:
        self.index, self.fault = index, fault
        self.moment: Moment = fault.moment(plan.workload.requests[fault.request].max_tokens)
        self.struck = False
        seam.note("fault.armed", index, str(fault))

    def is_for(self, reader: Reader, where: Where) -> bool:
        if self.struck or self.fault.request != reader.number or self.moment.where != where:
            return False
        return reader.tokens >= self.moment.tokens


class Program:
    """The workload under way."""

    def __init__(self, seam: Seam, plan: Plan, armed: list[_Armed], llm: AsyncLLM) -> None:
        self.seam = seam
        self._plan = plan
        self._armed = armed
        self._llm: AsyncLLM | None = llm
        self._numbers = len(plan.workload.requests)
        self._readers: list[Reader] = []
        self._open: list[AsyncGenerator[RequestOutput, None]] = []
        self._drops: Callable[[], None] | None = None

    @property
    def llm(self) -> AsyncLLM:
        if self._llm is None:
            raise RuntimeError("the client program has dropped its engine")
        return self._llm

    async def run(self) -> None:
        """Ask everything, wait for every end, make the demand, stop the engine."""
        self.ask_health()
        await self._ask_all()
        while waiting := [reader.task for reader in self._readers if not reader.task.done()]:
            await asyncio.wait(waiting)  # meanwhile a fault may have begun further ones
        for reader in self._readers:
            if not (reader.cancelled and reader.task.cancelled()):
                reader.task.result()
        if self._drops is not None:
            await self._drop(self._drops)
            return
        for method in self._plan.workload.utilities:
            await self._call(method)
        await self._demand()
        await self._check_latch()
        self.seam.mark("shutdown", kind="begin")
        try:
            self.llm.shutdown()
        except Exception as error:  # which of them are right is for oracles to judge
            mark_error(self.seam, "shutdown", "failed", error)
        else:
            self.seam.mark("shutdown", kind="done")

    async def _ask_all(self) -> None:
        last: Reader | None = None
        for index, request in enumerate(self._plan.workload.requests):
            if request.at == "previous" and last is not None:
                await asyncio.wait([last.task])
            if request.after:
                await asyncio.sleep(request.after)
            if self._drops is not None:
                return
            last = Reader(self, index, f"r{index}", "", *self.asked(index))
            self.begin(last)

    # What readers and faults use

    def asked(self, index: int) -> tuple[Any, SamplingParams]:
        """Prompt and parameters of a request of the workload."""
        request = self._plan.workload.requests[index]
        ids = list(request.prompt)
        in_add = any(armed.moment.where == "add" and armed.fault.request == index for armed in self._armed)
        prompt = _rows(self._plan.engine.model, ids) if in_add else ids
        return prompt, SamplingParams(request.max_tokens)

    def further(self, kind: str, prompt: Any, params: SamplingParams, name: str = "") -> Reader:
        """A reader for a request that is not of the workload, under that id or one of its own."""
        number, self._numbers = self._numbers, self._numbers + 1
        return Reader(self, number, name or f"r{number}", kind, prompt, params)

    def begin(self, reader: Reader) -> None:
        self._readers.append(reader)
        reader.begin()

    def wants(self, reader: Reader, where: Where) -> bool:
        return any(armed.is_for(reader, where) for armed in self._armed)

    def passes(self, reader: Reader, where: Where) -> bool:
        struck = False
        for armed in self._armed:
            if armed.is_for(reader, where):
                armed.struck = struck = True
                self.seam.note("fault.reached", armed.index, str(armed.fault))
                armed.fault.strike(Caller(self, armed.index, armed.fault, reader))
        if where == "token" and self._drops is not None:
            reader.leave = reader.leave or "open"
        return struck

    def keep(self, stream: AsyncGenerator[RequestOutput, None]) -> None:
        self._open.append(stream)

    def drop(self, fired: Callable[[], None]) -> None:
        """Let every reader leave its stream open at its next token; ``fired`` is called before all is let go."""
        self._drops = fired

    # The end

    async def _call(self, method: str) -> None:
        """One utility of the workload; a dead engine is asked too, since it has to say so."""
        self.seam.mark("utility", kind="begin", text=method)
        try:
            await self.llm.client.call_utility_async(method)
        except Exception as error:  # which of them are right is for oracles to judge
            mark_error(self.seam, "utility", "failed", error)
        else:
            self.seam.mark("utility", kind="end", text=method)

    async def _demand(self) -> None:
        """Every stream is over and the faults are healed: a live engine serves, and holds no request and no page.

        What closes the streams was sent before the questions, and the engine takes messages in order: so the first
        answer counts.
        """
        await _turns()
        client = self.llm.client
        if client.dead is not None:
            return
        self.seam.mark("demand", kind="begin")
        if self._plan.faults:
            self._heal()
        self.ask_health()
        for _ in range(CANARIES):
            if not await self._canary():
                self.seam.mark("demand", kind="end")
                return
            if self.ask_health() != "stalled":
                break
        try:
            live = await client.live_requests_async()
            free = await client.reset_prefix_cache_async()
        except EngineError as error:
            mark_error(self.seam, "demand", "failed", error)
            return
        held = ", ".join(str(request_id) for _, request_id in live)
        self.seam.mark("demand", kind="requests", value=len(live), ok=not live, text=held)
        self.seam.mark("demand", kind="pages", ok=free)
        self.seam.mark("demand", kind="end")

    def _heal(self) -> None:
        """Have the lane undo what stands of the plan's faults, and wait until it has."""
        outlets = self.seam.outlets
        if outlets.flags is None:
            return
        self.seam.recorder.wait(now(), "heal", text="what stands of the faults", held=True)
        os.write(outlets.calls, HEAL.to_bytes(4, "little"))
        outlets.flags.wait(HEAL)
        self.seam.recorder.done()

    async def _canary(self) -> bool:
        """Ask once more what the shortest request of the workload asks; whether the engine lives after it."""
        requests = self._plan.workload.requests
        like = min(range(len(requests)), key=lambda index: len(requests[index].prompt))
        tokens = min(requests[like].max_tokens, CANARY_TOKENS)
        canary = self.further(f"r{like}", list(requests[like].prompt), SamplingParams(tokens))
        canary.shorter = tokens
        self.begin(canary)
        await canary.task
        return self.llm.client.dead is None

    def ask_health(self) -> str:
        """What health says: green, stalled or dead; noted."""
        try:
            self.llm.check_health()
        except EngineError as error:
            word = "stalled" if isinstance(error, EngineStalledError) else "dead"
            mark_error(self.seam, "health", word, error)
        else:
            word = "green"
            self.seam.mark("health", kind=word)
        return word

    async def _drop(self, fired: Callable[[], None]) -> None:
        """Let go the streams and the client: the engine's processes must go within a few turns.

        They may not wait for a collection of garbage. The client may: an error that was caught can hold who raised it.
        """
        processes = {}
        for role, pid in self.llm.client.pids.items():
            with contextlib.suppress(ProcessLookupError):  # killed before
                processes[role] = os.pidfd_open(pid)
        client = weakref.ref(self.llm.client)
        self.seam.mark("shutdown", kind="begin")
        fired()
        self._open.clear()
        self._llm = None
        await _turns()
        left = [role for role, descriptor in processes.items() if not select.select([descriptor], [], [], 0)[0]]
        self.seam.mark("demand", kind="processes", value=len(left), ok=not left, text=", ".join(left))
        gc.collect()
        await _turns()
        gc.collect()
        self.seam.mark("demand", kind="reference", ok=client() is None)
        self.seam.mark("shutdown", kind="done")
        for descriptor in processes.values():
            os.close(descriptor)

    async def _check_latch(self) -> None:
        """Once dead, always dead: health and a new request, each twice, repeat the error. Harmless on a live engine."""
        llm, seam = self.llm, self.seam
        self.ask_health()
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


async def _turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def _rows(model: str, ids: list[int]) -> Any:
    """The prompt as the rows of embeddings that the model would look up for it."""
    from engine.model import weights
    from engine.model.config import MODELS

    return weights.full(MODELS[model], "embedding")[ids].numpy()


def reference(requests: bytes, fds: list[int]) -> int:
    """Writes the reference tokens of (model, prompt, max_tokens) triples to the first descriptor, as msgpack."""
    from engine.model.reference import greedy

    triples = msgspec.msgpack.decode(requests, type=list[tuple[str, list[int], int]])
    tokens = [greedy(model, prompt, max_tokens) for model, prompt, max_tokens in triples]
    os.write(fds[0], msgspec.msgpack.encode(tokens))
    return 0
