"""Both clients under one face: every call begins at once and gives a future, whichever kind of client makes it."""

from __future__ import annotations

import abc
import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import pytest

from engine.client.aio import AsyncMPClient
from engine.client.base import MPClient
from engine.client.sync import SyncMPClient
from engine.config import EngineConfig, Timeouts
from engine.errors import EngineDeadError
from engine.messages import Outputs, Request, RequestOutput, SamplingParams
from engine.model import reference
from tests.engine.driving import begin
from tests.engine.forks import ForkFactory, config_for

BOUND = 5.0
"""Seconds within which whatever is waited for must come."""

KINDS = ("asyncio", "plain")

PATIENT = Timeouts(startup=20.0, handshake=10.0, step=60.0, stall=20.0, shutdown=5.0)
"""Deadlines that no test lives to see: what ends in time under them was noticed by other means."""

PROMPT = [3, 1, 4, 1, 5]

Call = concurrent.futures.Future[Any]

both_kinds = pytest.mark.parametrize("kind", KINDS)


class Caller(abc.ABC):
    """A client with its engine's ranks."""

    client: MPClient

    def __init__(self, factory: ForkFactory) -> None:
        self.factory = factory

    @abc.abstractmethod
    def begin_read(self) -> Call: ...

    @abc.abstractmethod
    def begin_add(self, request: Request) -> Call: ...

    @abc.abstractmethod
    def begin_abort(self, names: Sequence[str]) -> Call: ...

    @abc.abstractmethod
    def begin_call(self, method: str, *args: Any, timeout: float | None = None) -> Call: ...

    @abc.abstractmethod
    def close(self) -> None:
        """After the client's end."""

    def read(self) -> Outputs:
        batch: Outputs = self.begin_read().result(BOUND)
        return batch

    def add(self, name: str, tokens: int = 4, prompt: Sequence[int] = PROMPT) -> None:
        self.begin_add(Request(name, list(prompt), SamplingParams(tokens))).result(BOUND)

    def abort(self, *names: str) -> None:
        self.begin_abort(names).result(BOUND)

    def call(self, method: str, *args: Any, timeout: float | None = None) -> Any:
        return self.begin_call(method, *args, timeout=timeout).result(BOUND)

    def outputs_of(self, *names: str) -> dict[str, list[RequestOutput]]:
        """Read until these requests have ended; nothing of any other may come."""
        told: dict[str, list[RequestOutput]] = {name: [] for name in names}
        while not all(outputs and outputs[-1].finish_reason for outputs in told.values()):
            for output in self.read().outputs:
                told[output.request_id].append(output)
        return told

    def serve(self, name: str = "served", tokens: int = 4, prompt: Sequence[int] = PROMPT) -> None:
        """A request from beginning to end, with the right tokens."""
        self.add(name, tokens, prompt)
        (outputs,) = self.outputs_of(name).values()
        assert tokens_of(outputs) == reference.greedy("tiny", list(prompt), tokens)

    def pid(self, rank: int) -> int:
        return self.factory.processes[f"dp0.rank{rank}"].pid

    def signal(self, rank: int, signum: int) -> None:
        self.factory.processes[f"dp0.rank{rank}"].send_signal(signum)


class LoopCaller(Caller):
    """The asyncio client, built outside of any loop; its loop then runs on a thread of its own."""

    client: AsyncMPClient

    def __init__(self, config: EngineConfig, factory: ForkFactory) -> None:
        super().__init__(factory)
        self.client = AsyncMPClient(config, factory)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="loop", daemon=True)
        self._thread.start()

    def begin_read(self) -> Call:
        return self.begin(self.client.get_output_async())

    def begin_add(self, request: Request) -> Call:
        return self.begin(self.client.add_request_async(request))

    def begin_abort(self, names: Sequence[str]) -> Call:
        return self.begin(self.client.abort_requests_async(list(names)))

    def begin_call(self, method: str, *args: Any, timeout: float | None = None) -> Call:
        return self.begin(self.client.call_utility_async(method, *args, timeout=timeout))

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> Call:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def close(self) -> None:
        self.begin(_others_end()).result(BOUND)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(BOUND)
        self.loop.close()


class PlainCaller(Caller):
    """The client for plain calls; each call is made on a thread of its own."""

    client: SyncMPClient

    def __init__(self, config: EngineConfig, factory: ForkFactory) -> None:
        super().__init__(factory)
        self.client = SyncMPClient(config, factory)

    def begin_read(self) -> Call:
        return begin(self.client.get_output)

    def begin_add(self, request: Request) -> Call:
        return begin(lambda: self.client.add_request(request))

    def begin_abort(self, names: Sequence[str]) -> Call:
        return begin(lambda: self.client.abort_requests(list(names)))

    def begin_call(self, method: str, *args: Any, timeout: float | None = None) -> Call:
        return begin(lambda: self.client.call_utility(method, *args, timeout=timeout))

    def close(self) -> None:
        """Nothing is held."""


@contextlib.contextmanager
def serving(
    kind: str, size: int = 1, before: Callable[[str], None] | None = None, keep: Sequence[int] = (), **changes: Any
) -> Iterator[Caller]:
    """A client of that kind, of an engine of `size` ranks with patient deadlines; nothing of it is left at the end."""
    factory = ForkFactory(before, keep)
    caller: Caller | None = None
    try:
        config = config_for(size, **{"timeouts": PATIENT, **changes})
        caller = LoopCaller(config, factory) if kind == "asyncio" else PlainCaller(config, factory)
        yield caller
        caller.client.shutdown()
        caller.close()
        assert factory.living() == []
    finally:
        # What a change has broken must not keep the next test waiting.
        left = factory.living()
        factory.kill()
        if left and caller is not None:
            caller.client.shutdown(0)


def tokens_of(outputs: Sequence[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def dies(call: Call, within: float = BOUND) -> EngineDeadError:
    """The error of the engine's death, with which this call must end in time."""
    with pytest.raises(EngineDeadError) as caught:
        call.result(within)
    return caught.value


def until(wanted: Callable[[], bool], what: str, within: float = BOUND) -> None:
    """Return once that is so, which it must be in time."""
    deadline = time.monotonic() + within
    while not wanted():
        assert time.monotonic() < deadline, f"not so after {within} s: {what}"
        time.sleep(0.001)


async def _others_end() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=BOUND)
