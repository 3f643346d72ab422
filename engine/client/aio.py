"""The asyncio client: everything on one event loop, one receiver task, no timers, no polling.

The client may be built before any loop runs; the first call made inside one attaches it there. The receiver task knows
the inbox, the socket and the latch, and not the client. However it ends, the engine counts as dead from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque

import msgspec
import zmq
import zmq.asyncio

from engine.client.base import MPClient, Resources
from engine.config import EngineConfig
from engine.errors import EngineDeadError
from engine.launch import ProcessFactory
from engine.messages import CLIENT_ROLE, ENGINE_CORE_DEAD, Outputs, Request, rank_role
from engine.monitor import DeathLatch

CAUSE_LIMIT = 3.0
"""Seconds to wait for the monitor to name the cause once the engine is known to be dead by other means."""

CLOSE_LIMIT = 2.0
"""Seconds to wait for the event loop to close its sockets when the shutdown runs on another thread."""


class Inbox:
    """Outputs that wait for a reader, and readers that wait for outputs. Belongs to one event loop."""

    def __init__(self, latch: DeathLatch) -> None:
        self._latch = latch
        self._outputs: deque[Outputs] = deque()
        self._readers: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def put(self, outputs: Outputs) -> None:
        self._outputs.append(outputs)
        self._wake_one()

    def close(self) -> None:
        """No more outputs will come: every reader gets what is left and then the latched error."""
        self._closed = True
        while self._readers:
            self._wake_one()

    async def get(self) -> Outputs:
        """The next outputs. Raises the latched error once nothing is left."""
        while not self._outputs:
            if self._closed:
                self._latch.check()
            reader = asyncio.get_running_loop().create_future()
            self._readers.append(reader)
            try:
                await reader
            except asyncio.CancelledError:
                if reader in self._readers:
                    self._readers.remove(reader)
                elif self._outputs:
                    self._wake_one()  # the wake-up was this reader's; somebody else must have it
                raise
        return self._outputs.popleft()

    def _wake_one(self) -> None:
        while self._readers:
            reader = self._readers.popleft()
            if not reader.done():
                reader.set_result(None)
                return


class Attachment:
    """The client's part that lives on an event loop: inbox and receiver task. Never refers to the client itself."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self.loop = asyncio.get_running_loop()
        self.inbox = Inbox(resources.latch)
        self._output: zmq.asyncio.Socket = resources.output
        self._readable = True
        self._pending: asyncio.Future[list[bytes]] | None = None
        self._buried = asyncio.Event()
        self.task = self.loop.create_task(self._receive(), name="engine-receiver")
        self.task.add_done_callback(self._receiver_ended)
        resources.close_sockets = self._close
        resources.latch.listen(self._call_undertaker)
        if resources.watchdog is not None:
            resources.watchdog.suspect_output = self._call_searcher

    async def send(self, frames: list[bytes]) -> None:
        """Send to the engine. Raises the latched error if the engine cannot be reached."""
        try:
            await self._resources.input.send_multipart(frames)
            self._resources.sent()
        except zmq.ZMQError as error:
            await self._await_cause()
            self._die(EngineDeadError(rank_role(0), f"cannot be reached: {error}"))
            self._resources.latch.check()

    # ---- receiving ----

    async def _receive(self) -> None:
        """The receiver: until the engine dies, a frame cannot be understood, or somebody cancels it."""
        while self._readable:
            pending = self._pending = asyncio.ensure_future(self._output.recv_multipart())
            frames = await pending
            self._pending = None
            if frames == [ENGINE_CORE_DEAD]:
                self._readable = False
                await self._await_cause()
                self._die(EngineDeadError(rank_role(0), "it sent its dead frame"))
            else:
                self._take(frames)

    def _take(self, frames: list[bytes]) -> None:
        problem = ""
        try:
            outputs = msgspec.msgpack.decode(frames[0], type=Outputs)
        except msgspec.MsgspecError as error:
            problem = f"sent an output frame that cannot be read: {error}"
        else:
            received = self._resources.traffic.received
            expected = received + 1
            if len(frames) != 1:
                problem = f"sent output {outputs.number} in {len(frames)} frames, expected 1"
            elif outputs.number != expected:
                problem = f"sent output {outputs.number} after {received}, expected {expected}"
        if problem:
            self._readable = False
            self._die(EngineDeadError(rank_role(0), problem))
        else:
            self._resources.received(outputs)
            self.inbox.put(outputs)

    def _call_searcher(self, number: int) -> None:
        """The watchdog calls this from its thread: message `number` was sent, where is it?"""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            self.loop.call_soon_threadsafe(self._search, number)

    def _search(self, number: int) -> None:
        """On the loop, which may have been blocked: what is there is taken; what is not there by now is lost."""
        if self._pending is not None and self._pending.done():
            self.loop.call_soon(self._search, number)
            return
        if self._resources.released or not self._readable:
            return
        self._take_the_rest()
        received = self._resources.traffic.received
        if self._readable and received < number:
            self._die(EngineDeadError(rank_role(0), f"sent output {number}, and only {received} have arrived"))

    async def _await_cause(self) -> None:
        """Wait, within a bound, until the monitor has latched the cause."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CAUSE_LIMIT):
                await self._buried.wait()

    # ---- death ----

    def _die(self, error: EngineDeadError) -> None:
        """Latch an error that was found on this side, and let the monitor take the ranks down."""
        if self._resources.latch.set(error) and self._resources.monitor is not None:
            self._resources.monitor.wake()

    def _receiver_ended(self, task: asyncio.Task[None]) -> None:
        self._pending = None
        how = "was cancelled" if task.cancelled() else f"ended: {task.exception() or 'no reason'}"
        self._die(EngineDeadError(CLIENT_ROLE, f"the receiver task {how}"))

    def _call_undertaker(self) -> None:
        """The latch calls this once, from whatever thread found the death."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            self.loop.call_soon_threadsafe(self._bury)

    def _bury(self) -> None:
        """On the loop: what had arrived before goes to the readers, then every one of them gets the error."""
        if self._pending is not None and self._pending.done():
            self.loop.call_soon(self._bury)  # the receiver holds a frame; it comes first
            return
        if not self._resources.released:
            self._take_the_rest()
        self._readable = False
        self._buried.set()
        self.task.cancel()
        self.inbox.close()

    def _take_the_rest(self) -> None:
        for frames in self._resources.drain_output():
            if not self._readable or frames == [ENGINE_CORE_DEAD]:
                return
            self._take(frames)

    # ---- release ----

    def _close(self) -> None:
        """Close the sockets on the loop's own thread while the loop runs, else here."""
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self.loop or not self.loop.is_running():
            self._close_here()
            return
        closed = threading.Event()

        def close() -> None:
            self._close_here()
            closed.set()

        self.loop.call_soon_threadsafe(close)
        closed.wait(CLOSE_LIMIT)

    def _close_here(self) -> None:
        self._bury()
        self._resources.close_unattached()


class AsyncMPClient(MPClient):
    """Client of one engine for asyncio programs.

    Build it anywhere (the constructor blocks until the engine is ready); use it inside one event loop. Once the engine
    is dead every call but :meth:`abort_requests_async` raises the same :class:`EngineDeadError`, after
    :meth:`get_output_async` has delivered what had arrived before.
    """

    def __init__(self, config: EngineConfig, factory: ProcessFactory | None = None) -> None:
        self._attachment: Attachment | None = None
        super().__init__(config, factory)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return  # no loop runs yet: the first call attaches
        self._attach()

    async def add_request_async(self, request: Request) -> None:
        """Send a request.

        Raises :class:`EngineDeadError` if the engine is dead, :class:`EngineBusyError` if as many requests are under
        way as it may hold, :class:`EngineGenerateError` for a request that cannot be sent.
        """
        attachment = self._attach()
        self._resources.latch.check()
        frames = self._add_frames(request)
        self._resources.owed.add(request.request_id)
        await attachment.send(frames)

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        """Ask for the end of requests. Unknown ids are ignored; so is everything once the engine is dead."""
        if not request_ids or self.dead is not None:
            return
        attachment = self._attach()
        with contextlib.suppress(EngineDeadError):
            await attachment.send(self._abort_frames(request_ids))

    async def get_output_async(self) -> Outputs:
        """The next outputs, in the order in which the engine sent them."""
        return await self._attach().inbox.get()

    def _context(self) -> zmq.asyncio.Context:
        return zmq.asyncio.Context()

    def _attach(self) -> Attachment:
        """The part that lives on the running loop, made by the first call."""
        if self._attachment is None:
            if self._resources.released:
                self._resources.latch.check()
            self._attachment = Attachment(self._resources)
        elif self._attachment.loop is not asyncio.get_running_loop():
            self._resources.latch.check()
            raise RuntimeError("the client is in use on another event loop")
        return self._attachment
