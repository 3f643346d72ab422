"""The reader of one request's stream: an ordinary task of the client program that notes what comes.

It also tells the program each moment of the request at which a client fault may strike. It looks at itself for that
from outside: it drives each step of its stream by hand, and so sees every await at which the step stops.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, Literal, Protocol, TypeVar

from engine.client.aio import AsyncMPClient
from engine.errors import EngineError
from engine.llm import AsyncLLM
from engine.messages import FinishReason, RequestOutput, SamplingParams
from harness.faults.moments import Where
from harness.seam.site import Seam

T = TypeVar("T")

_SENDING: str = AsyncMPClient.add_request_async.__qualname__

Leave = Literal["", "aclose", "break", "open"]
"""How to leave the stream at a token: not at all, by closing it, by going away, or by handing it over as it is."""


class Program(Protocol):
    """What a reader needs of the client program."""

    seam: Seam

    @property
    def llm(self) -> AsyncLLM: ...

    def passes(self, reader: Reader, where: Where) -> bool:
        """The request is at this moment; whether a fault has struck."""
        ...

    def wants(self, reader: Reader, where: Where) -> bool:
        """Whether a fault is still to strike there."""
        ...

    def keep(self, stream: AsyncGenerator[RequestOutput, None]) -> None:
        """A stream that was left open."""
        ...

    def begin(self, reader: Reader) -> None:
        """Start a reader of a further request."""
        ...

    def ask_health(self) -> str:
        """Note what health says."""
        ...

    def further(self, kind: str, prompt: Any, params: SamplingParams, name: str = "") -> Reader:
        """A reader for a further request."""
        ...


class Watched(Awaitable[T]):
    """A step of a stream that tells of each await, the task still inside it."""

    def __init__(self, step: Awaitable[T], stops: Callable[[asyncio.Future[Any]], None]) -> None:
        self._step, self._stops = step, stops

    def __await__(self) -> Generator[Any, Any, T]:
        inner = self._step.__await__()
        try:
            awaited = next(inner)
            while True:
                self._stops(awaited)
                try:
                    yield awaited
                except BaseException as error:  # kept by nobody, or it would keep the stream through its traceback
                    awaited = inner.throw(error)
                else:
                    awaited = next(inner)
        except StopIteration as end:
            result: T = end.value
            return result


class Reader:
    """One request from its sending to its end, each token a mark. The faults of its moments set what is public.

    ``kind`` is empty for a request of the workload, ``rk`` for one that asks what request k asks, ``poison`` for one
    that must be refused.
    """

    def __init__(
        self, program: Program, number: int, name: str, kind: str, prompt: Any, params: SamplingParams
    ) -> None:
        self._program = program
        self._seam = program.seam
        self.number, self.name, self.kind = number, name, kind
        self.prompt, self.params = prompt, params
        self.tokens = 0
        self.leave: Leave = ""
        self.pace = 0.0
        """Seconds to wait after each token."""
        self.shorter = 0
        """How many tokens it asks for, where those are fewer than the request has that it is like; 0 elsewhere."""
        self.cancelled = False
        """Whether a fault has cancelled the task."""
        self.next: Callable[[], Reader] | None = None
        """Makes the reader that is begun as soon as this one is over."""
        self.chores: list[asyncio.Task[None]] = []
        """What faults have begun, and what must be done before the request is sent if it has not been."""
        self.task: asyncio.Task[None]
        self._over = False

    def begin(self) -> None:
        """Start the task."""
        self.task = asyncio.create_task(self._run(), name=self.name)
        self.task.add_done_callback(self._ended)
        self._program.passes(self, "start")

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() and self.cancelled and not self._over:
            self._give_up("cancelled")  # it has never run

    async def _run(self) -> None:
        if self.chores:
            await asyncio.wait(self.chores)
        self._seam.mark("request.sent", kind=self.kind, number=self.number, value=self.shorter, text=self.name)
        try:
            await self._read(self._program.llm.generate(self.prompt, self.params, self.name))
        except asyncio.CancelledError:
            if not self.cancelled:
                raise
            self._give_up("cancelled")
        except Exception as error:
            self._over = True
            mark_error(self._seam, "request.failed", type(error).__name__, error, self.number)
            self._program.ask_health()
        if self.next is not None:
            self._program.begin(self.next())

    async def _read(self, stream: AsyncGenerator[RequestOutput, None]) -> None:
        stops = functools.partial(self._stops, stream)
        while True:
            try:
                output = await Watched(anext(stream), stops)
            except StopAsyncIteration:
                break
            self._take(output)
            if output.token_ids and (self._program.passes(self, "token") or self.pace):
                await asyncio.sleep(self.pace)
            if self.leave:
                await self._leave(stream)
                return
        if not self._over:
            self._mark("request.finished", "none")

    def _take(self, output: RequestOutput) -> None:
        for token in output.token_ids:
            self.tokens += 1
            self._seam.mark("request.token", number=self.number, value=token, text=self.name)
            self._seam.recorder.progress()
        if output.finish_reason is not None:
            self._over = True
            told = f"{output.error_kind}|{output.error}" if output.finish_reason is FinishReason.ERROR else self.name
            self._seam.mark("request.finished", str(output.finish_reason), self.number, text=told)

    async def _leave(self, stream: AsyncGenerator[RequestOutput, None]) -> None:
        if self.leave == "aclose":
            await stream.aclose()
        elif self.leave == "open":
            self._program.keep(stream)
        if not self._over:
            self._give_up("left open" if self.leave == "open" else "closed")

    def _stops(self, stream: AsyncGenerator[RequestOutput, None], awaited: asyncio.Future[Any]) -> None:
        """A step of the stream is about to wait for this."""
        inside = getattr(getattr(stream, "ag_await", None), "__qualname__", "")
        where: Where = "add" if inside == _SENDING else "read"
        if self._program.wants(self, where):
            if where == "add":  # over soon, and perhaps by the next turn already: the task has not gone on then
                asyncio.get_running_loop().call_soon(self._program.passes, self, where)
            else:
                asyncio.get_running_loop().call_soon(self._waits, awaited)
        if where == "read" and self._program.wants(self, "tick"):
            awaited.add_done_callback(lambda _: self._program.passes(self, "tick"))  # comes before the task's own

    def _waits(self, awaited: asyncio.Future[Any]) -> None:
        if not awaited.done():
            self._program.passes(self, "read")

    def _give_up(self, how: str) -> None:
        self._over = True
        self._mark("request.given_up", how)

    def _mark(self, site: str, kind: str) -> None:
        self._seam.mark(site, kind=kind, number=self.number, text=self.name)


def mark_error(seam: Seam, site: str, kind: str, error: Exception, number: int = -1) -> None:
    """``text`` is 'type|culprit|cause', the culprit empty for an error that names none."""
    culprit = getattr(error, "culprit", "")
    cause = getattr(error, "cause", str(error)) if isinstance(error, EngineError) else str(error)
    seam.mark(site, kind=kind, number=number, ok=False, text=f"{type(error).__name__}|{culprit}|{cause}")
