"""Two ways to drive a client, one step at a time: from an event loop that only runs when it is told to, or from
threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import zmq

from engine.client.aio import AsyncMPClient
from engine.client.base import MPClient
from engine.client.sync import SyncMPClient
from engine.config import EngineConfig
from engine.messages import Outputs, Request
from tests.engine.forks import ForkFactory

BOUND = 15.0
"""Seconds after which something that must happen counts as never happening. Nothing is ever awaited by time alone."""

Wait = asyncio.Future[Any] | concurrent.futures.Future[Any]
"""A call under way."""


class Driver(Protocol):
    """Drives one client after the other. Calls begin in the order in which they are made."""

    client: Any
    complaints: list[str]
    """What a loop had to say to nobody: exceptions that were lost."""

    def build(self, config: EngineConfig, factory: ForkFactory, *, inside: bool) -> None:
        """Start an engine; `inside` a running event loop, where there is one."""

    def add(self, request: Request) -> Wait: ...

    def abort(self, names: list[str]) -> Wait: ...

    def call(self, method: str, args: Sequence[Any], timeout: float | None = None) -> Wait: ...

    def read(self) -> Wait: ...

    def glance(self) -> Wait:
        """Read, but do not wait for what is not there."""

    def sent(self, wait: Wait) -> None:
        """Return once that call has sent its message, or is over."""

    def turn(self, count: int) -> None:
        """Let everything that is ready go on, `count` times."""

    def settle(self, waits: Sequence[Wait], *, first: bool = False) -> None:
        """Return once these calls, or the `first` of them, are over, which they must be within :data:`BOUND`."""

    def within(self, wanted: Callable[[], bool], what: Callable[[], str]) -> None:
        """Let everything go on until that is so, which it must be within :data:`BOUND`."""

    def batches(self, reads: Sequence[Wait]) -> list[Outputs]:
        """What these reads, which are over, have brought, in the order in which the client gave it away."""

    def shut(self, where: str, timeout: float | None, drain: bool) -> None:
        """Shut the client down: `here`, on a `thread`, or on two threads `at once`."""

    def forget(self) -> None:
        """Have no client any more."""

    def collect(self) -> None:
        """Collect garbage."""

    def close(self) -> None: ...


class LoopDriver:
    """For the asyncio client, on a loop of its own."""

    client: AsyncMPClient | None = None

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self.open()

    def open(self) -> None:
        """Make a new loop."""
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(self._complain)

    def _complain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # A loop that is closed with a task in it is its owner's doing.
        if not (loop.is_closed() and "destroyed but it is pending" in context["message"]):
            self.complaints.append(str(context))

    def build(self, config: EngineConfig, factory: ForkFactory, *, inside: bool) -> None:
        async def make() -> None:
            self.client = AsyncMPClient(config, factory)

        if inside:
            self.loop.run_until_complete(make())
        else:
            self.client = AsyncMPClient(config, factory)

    def add(self, request: Request) -> Wait:
        return self.loop.create_task(self._client.add_request_async(request))

    def abort(self, names: list[str]) -> Wait:
        return self.loop.create_task(self._client.abort_requests_async(names))

    def call(self, method: str, args: Sequence[Any], timeout: float | None = None) -> Wait:
        return self.loop.create_task(self._client.call_utility_async(method, *args, timeout=timeout))

    def read(self) -> Wait:
        return self.loop.create_task(self._client.get_output_async())

    def glance(self) -> Wait:
        wait = self.read()
        self.turn(2)
        wait.cancel()
        return wait

    def sent(self, wait: Wait) -> None:
        self.turn(1)  # a task's first step

    def turn(self, count: int) -> None:
        for _ in range(count):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    def turn_when_something_comes(self, count: int) -> None:
        """Wait a moment for a message, so that the turns fall into the time in which it is on its way to a reader."""
        # The socket itself must not be asked: that would take the news of the message away from the loop.
        output = self._client._resources.output
        if not output.closed:
            waiting = select.poll()
            waiting.register(int(output.getsockopt(zmq.FD)), select.POLLIN)
            waiting.poll(50)
        self.turn(count)

    def settle(self, waits: Sequence[Wait], *, first: bool = False) -> None:
        tasks = [wait for wait in waits if isinstance(wait, asyncio.Future)]
        if tasks:
            when = asyncio.FIRST_COMPLETED if first else asyncio.ALL_COMPLETED
            done, late = self.loop.run_until_complete(asyncio.wait(tasks, timeout=BOUND, return_when=when))
            assert done if first else not late, f"still waiting after {BOUND} s: {late}"

    def within(self, wanted: Callable[[], bool], what: Callable[[], str]) -> None:
        async def watch() -> None:
            while not wanted():
                await asyncio.sleep(0.001)

        async def bounded() -> None:
            await asyncio.wait_for(watch(), BOUND)

        try:
            self.loop.run_until_complete(bounded())
        except TimeoutError:
            raise AssertionError(f"not so after {BOUND} s: {what()}") from None

    def batches(self, reads: Sequence[Wait]) -> list[Outputs]:
        return sorted((read.result() for read in reads), key=lambda batch: batch.number)

    def shut(self, where: str, timeout: float | None, drain: bool) -> None:
        client = self._client

        async def shut() -> None:
            if where == "here":
                client.shutdown(timeout, drain=drain)
                return
            threads = begin_shutdown(client, where, timeout, drain)
            await asyncio.gather(*(asyncio.wrap_future(thread) for thread in threads))

        if where == "without a loop":
            client.shutdown(timeout, drain=drain)
        else:
            self.loop.run_until_complete(asyncio.wait_for(shut(), BOUND))

    def forget(self) -> None:
        self.client = None

    def collect(self) -> None:
        gc.collect()
        self.turn(2)

    def close(self) -> None:
        self.loop.close()

    @property
    def receiver(self) -> asyncio.Task[Any] | None:
        """The client's receiver task, if it runs."""
        tasks = [task for task in asyncio.all_tasks(self.loop) if task.get_name() == "engine-receiver"]
        assert len(tasks) <= 1
        return tasks[0] if tasks else None

    @property
    def _client(self) -> AsyncMPClient:
        assert self.client is not None
        return self.client


class _Given(deque[Outputs]):
    """An inbox's content that notes the order in which it is given away."""

    def __init__(self) -> None:
        super().__init__()
        self.away: deque[Outputs] = deque()

    def popleft(self) -> Outputs:
        batch = super().popleft()
        self.away.append(batch)
        return batch


class ThreadDriver:
    """For the client of plain calls; every call is made on a thread of its own, and none can be cancelled."""

    client: SyncMPClient | None = None

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self.on_their_way: set[int] = set()
        """Numbers of the batches that a reader was given and has not brought yet."""
        self._given = _Given()
        self._sent = 0

    def build(self, config: EngineConfig, factory: ForkFactory, *, inside: bool) -> None:
        self.client = SyncMPClient(config, factory)
        inbox = self.client._receiver.inbox
        self._given = _Given()
        self._given.extend(inbox._outputs)
        inbox._outputs = self._given

    def add(self, request: Request) -> Wait:
        client = self._client
        return self._begin(lambda: client.add_request(request))

    def abort(self, names: list[str]) -> Wait:
        client = self._client
        return self._begin(lambda: client.abort_requests(names))

    def call(self, method: str, args: Sequence[Any], timeout: float | None = None) -> Wait:
        client = self._client
        return self._begin(lambda: client.call_utility(method, *args, timeout=timeout))

    def read(self) -> Wait:
        return self._begin(self._client.get_output)

    def glance(self) -> Wait:
        client = self._client
        return self._begin(lambda: client.get_output(0.001))

    def sent(self, wait: Wait) -> None:
        traffic, before = self._client._resources.traffic, self._sent
        self.within(lambda: wait.done() or traffic.sent > before, lambda: "a message is sent")

    def turn(self, count: int) -> None:
        time.sleep(0)

    def settle(self, waits: Sequence[Wait], *, first: bool = False) -> None:
        threads = [wait for wait in waits if isinstance(wait, concurrent.futures.Future)]
        if threads:
            when = concurrent.futures.FIRST_COMPLETED if first else concurrent.futures.ALL_COMPLETED
            done, late = concurrent.futures.wait(threads, BOUND, when)
            assert done if first else not late, f"still waiting after {BOUND} s: {late}"

    def within(self, wanted: Callable[[], bool], what: Callable[[], str]) -> None:
        wait_until(wanted, what)

    def batches(self, reads: Sequence[Wait]) -> list[Outputs]:
        # One reader may be ahead of another that was given the batch before it; the order of giving counts.
        brought = {read.result().number for read in reads}
        given = [self._given.away.popleft() for _ in range(len(self._given.away))]
        self.on_their_way |= {batch.number for batch in given}
        self.on_their_way -= brought
        return given

    def shut(self, where: str, timeout: float | None, drain: bool) -> None:
        if where in ("here", "without a loop"):
            self._client.shutdown(timeout, drain=drain)
        else:
            self.settle(begin_shutdown(self._client, where, timeout, drain))

    def forget(self) -> None:
        self.client = None

    def collect(self) -> None:
        assert not self.on_their_way, f"given to readers that are gone: {self.on_their_way}"
        gc.collect()

    def close(self) -> None:
        """Nothing is held."""

    def _begin(self, call: Callable[[], object]) -> Wait:
        self._sent = self._client._resources.traffic.sent
        return begin(call)

    @property
    def _client(self) -> SyncMPClient:
        assert self.client is not None
        return self.client


def wait_until(wanted: Callable[[], bool], what: Callable[[], str]) -> None:
    """Wait until that is so by the doing of other threads or processes, which it must be within :data:`BOUND`."""
    deadline = time.monotonic() + BOUND
    while not wanted():
        assert time.monotonic() < deadline, f"not so after {BOUND} s: {what()}"
        time.sleep(0.0005)


def begin(call: Callable[[], object]) -> concurrent.futures.Future[Any]:
    """Make a call on a thread of its own."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()  # from here on it cannot be cancelled

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="caller", daemon=True).start()
    return future


def begin_shutdown(
    client: MPClient, where: str, timeout: float | None, drain: bool
) -> list[concurrent.futures.Future[Any]]:
    """A shutdown on another thread, or on two `at once`."""
    count = 2 if where == "at once" else 1
    return [begin(lambda: client.shutdown(timeout, drain=drain)) for _ in range(count)]
