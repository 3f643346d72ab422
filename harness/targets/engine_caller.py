"""What the client program lends to a client fault that strikes; see `harness.faults.caller.Caller`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Literal

from engine.llm import AsyncLLM
from engine.messages import SamplingParams
from harness.clock import SECOND, now, sleep_until
from harness.faults import OnClient, kind_of
from harness.targets.engine_reader import Reader

if TYPE_CHECKING:
    from harness.targets.engine_client import Program

OUTPUT_TASK = "engine-outputs"
"""The name of the task of `engine.llm.AsyncLLM` that hands outputs to the streams."""


class Caller:
    """The hand of one fault at a moment of one request."""

    def __init__(self, program: Program, index: int, fault: OnClient, reader: Reader) -> None:
        self._program, self._index, self._fault, self._reader = program, index, fault, reader
        self._seam = program.seam

    def fired(self) -> None:
        self._seam.note("fault.fired", self._index, str(self._fault))

    def over(self) -> None:
        self._seam.note("fault.over", self._index, str(self._fault))

    def cancel(self) -> None:
        self._reader.cancelled = True
        self._reader.task.cancel()

    def cancel_outputs(self) -> None:
        for task in asyncio.all_tasks():
            if task.get_name() == OUTPUT_TASK:
                task.cancel()

    def leave(self, how: Literal["aclose", "break"]) -> None:
        self._reader.leave = how

    def drop(self) -> None:
        self._program.drop(self.fired)

    def abort(self) -> None:
        self._seam.mark("request.abort", number=self._reader.number, text=self._reader.name)
        self._chore(_abort(self._program.llm, self._reader.name))

    def abort_ids(self, ids: Sequence[str]) -> None:
        self._chore(_abort_ids(self._program.llm, ids))

    def again(self, like: int) -> None:
        name, program = self._reader.name, self._program
        self._reader.next = lambda: program.further(f"r{like}", *program.asked(like), name=name)

    def pace(self, seconds: float) -> None:
        self._reader.pace = seconds

    def block(self, seconds: float) -> None:
        until = now() + int(seconds * SECOND)
        self._seam.recorder.wait(
            now(), f"fault.{kind_of(self._fault)}", gives_up=until, text=str(self._fault), held=True
        )
        sleep_until(until)
        self._seam.recorder.done()

    def send(self, count: int) -> None:
        like = self._reader.number
        for _ in range(count):
            self._program.begin(self._program.further(f"r{like}", *self._program.asked(like)))

    def poison(self, prompt: Any, params: dict[str, Any], *, same_id: bool = False) -> None:
        name = self._reader.name if same_id else ""
        self._program.begin(self._program.further("poison", prompt, SamplingParams(**params), name=name))

    def _chore(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine, name=f"fault {self._index}")
        self._reader.chores.append(task)


async def _abort(llm: AsyncLLM, name: str) -> None:
    await llm.abort(name)


async def _abort_ids(llm: AsyncLLM, ids: Sequence[str]) -> None:
    await llm.client.abort_requests_async(list(ids))
