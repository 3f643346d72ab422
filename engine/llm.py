"""The front door: stream tokens out of an engine."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import weakref
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Any

import msgspec

from engine.client.aio import AsyncMPClient
from engine.codec import Array
from engine.config import EngineConfig
from engine.errors import EngineBusyError, EngineDeadError, EngineGenerateError
from engine.launch import ProcessFactory
from engine.messages import ErrorKind, FinishReason, Request, RequestOutput, SamplingParams

Prompt = Sequence[int] | Any
"""Token ids, or rows of embeddings as a numpy array, a torch tensor or an :class:`engine.codec.Array`."""

Stream = asyncio.Queue[RequestOutput | EngineDeadError]


class AsyncLLM:
    """An engine and any number of concurrent generations on one event loop.

    The constructor starts the engine and blocks until it is ready (:class:`engine.errors.StartupError` if it is not).
    Use it as an async context manager, or call :meth:`shutdown`.
    """

    def __init__(self, config: EngineConfig, factory: ProcessFactory | None = None) -> None:
        self.client = AsyncMPClient(config, factory)
        self._streams: dict[str, Stream] = {}
        self._wire_ids: dict[str, str] = {}
        self._numbers = itertools.count()
        self._task: asyncio.Task[None] | None = None
        # The output task holds the client and the streams, not this object: dropping it ends everything.
        self._finalizer = weakref.finalize(self, self.client.shutdown)

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        request_id: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield what each step brings for this prompt; the last output carries a finish reason.

        A request that the engine cannot take ends with reason `error`, a kind and a text. Raises
        :class:`EngineDeadError` once the engine is dead, :class:`EngineGenerateError` for an id that is in use and for
        a prompt that cannot be sent. Leaving the iteration early aborts.
        """
        self.client.check_dead()
        number = next(self._numbers)
        while request_id is None and f"request-{number}" in self._wire_ids:
            number = next(self._numbers)
        name = f"request-{number}" if request_id is None else request_id
        if name in self._wire_ids:
            raise EngineGenerateError(f"request id {name!r} is already under way")
        # On the wire every request has an id of its own: what still comes for an aborted one must not reach the next
        # one that its caller names the same.
        wire_id = f"{name}#{number}"
        stream: Stream = asyncio.Queue()
        self._streams[wire_id] = stream
        self._wire_ids[name] = wire_id
        finished = False
        try:
            self._ensure_task()
            try:
                await self.client.add_request_async(_request(wire_id, prompt, params or SamplingParams()))
            except EngineBusyError as error:
                finished = True
                yield RequestOutput(name, [], FinishReason.ERROR, str(error), ErrorKind.BUSY)
            while not finished:
                output = await stream.get()
                if isinstance(output, EngineDeadError):
                    finished = True
                    try:
                        raise output.with_traceback(None)
                    finally:
                        del output  # its traceback holds this frame
                finished = output.finish_reason is not None
                yield msgspec.structs.replace(output, request_id=name)
        finally:
            del self._streams[wire_id], self._wire_ids[name]
            if not finished:
                await self.client.abort_requests_async([wire_id])

    async def abort(self, request_id: str) -> None:
        """End a generation: its iteration gets a last output with reason `abort`. Unknown ids are ignored."""
        wire_id = self._wire_ids.get(request_id)
        if wire_id is not None:
            await self.client.abort_requests_async([wire_id])

    # ---- utilities; they raise as EngineCoreClient.call_utility does ----

    async def pause_generation(self, mode: str = "abort") -> None:
        """Let nothing run until :meth:`resume_generation`: `abort` ends what is under way, `wait` finishes it before
        this returns, `keep` freezes it. New prompts wait."""
        await self.client.pause_scheduler_async(mode)

    async def resume_generation(self) -> None:
        """End a pause."""
        await self.client.resume_scheduler_async()

    async def is_paused(self) -> bool:
        """Whether a pause is on."""
        return await self.client.is_scheduler_paused_async()

    async def sleep(self, level: int = 1) -> None:
        """Abort everything, pause, and give memory back: level 1 the key-value cache, 2 the weights too."""
        await self.client.sleep_async(level)

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Take memory back: all, or of `kv_cache` and `weights` what is named. Prompts run again once all is there."""
        await self.client.wake_up_async(tags)

    async def is_sleeping(self) -> bool:
        """Whether any memory is given back."""
        return await self.client.is_sleeping_async()

    async def reset_prefix_cache(self) -> bool:
        """Forget what the pages of prompts hold; False if requests under way still use some of them."""
        return await self.client.reset_prefix_cache_async()

    async def start_profile(self, directory: str | None = None) -> None:
        """Start a recording on every rank."""
        await self.client.profile_async(True, directory)

    async def stop_profile(self, directory: str | None = None) -> list[str]:
        """Stop it and write a Chrome trace for each rank; their paths."""
        return await self.client.profile_async(False, directory) or []

    async def collective_rpc(self, method: str, *args: Any, timeout: float | None = None) -> list[Any]:
        """Call a worker method on every rank; what each returned, by rank."""
        return await self.client.collective_rpc_async(method, *args, timeout=timeout)

    # ---- state and end ----

    def check_health(self) -> None:
        """Raise :class:`EngineDeadError` if the engine is dead, :class:`EngineStalledError` if it does not get on."""
        self.client.check_health()

    def shutdown(self, timeout: float | None = None, *, drain: bool = False) -> None:
        """Stop the engine within `timeout` seconds (`timeouts.shutdown` if None), then by signals. Idempotent.

        Generations under way end with reason `abort`, or are finished first with `drain`; what has no end by then gets
        :class:`EngineDeadError`. It blocks the event loop when called on it; :func:`asyncio.to_thread` does not.
        """
        self.client.shutdown(timeout, drain=drain)
        self._finalizer()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
        if self._task is not None:
            await asyncio.wait([self._task])

    def _ensure_task(self) -> None:
        if self._task is None:
            coroutine = _distribute(self.client, self._streams)
            self._task = asyncio.get_running_loop().create_task(coroutine, name="engine-outputs")
            self._task.add_done_callback(functools.partial(_distributed, self.client, self._streams))


def _request(name: str, prompt: Prompt, params: SamplingParams) -> Request:
    """Raises :class:`EngineGenerateError` for a prompt that is no sequence of anything."""
    try:
        return Request(name, [], params, Array.of(prompt))
    except TypeError:
        pass
    try:
        return Request(name, list(prompt), params)
    except Exception as error:  # also what a caller's own sequence raises
        raise EngineGenerateError(f"request {name!r} cannot be sent: {error}") from error


async def _distribute(client: AsyncMPClient, streams: dict[str, Stream]) -> None:
    """Hand every output to its stream, until the engine is dead."""
    with contextlib.suppress(EngineDeadError):
        while True:
            batch = await client.get_output_async()
            for output in batch.outputs:
                stream = streams.get(output.request_id)
                if stream is not None:  # else an output that crossed its abort
                    stream.put_nowait(output)


def _distributed(client: AsyncMPClient, streams: dict[str, Stream], task: asyncio.Task[None]) -> None:
    """The output task is over: all streams get the error.

    However it ended, the engine is dead from then on, since nobody would hand out what still comes.
    """
    how = "was cancelled" if task.cancelled() else f"ended: {task.exception() or 'no reason'}"
    error = client.declare_dead(f"the output task {how}")
    for stream in streams.values():
        stream.put_nowait(error)
