"""The asyncio client: everything on one event loop, one receiver task, no polling.

The client may be built before any loop runs; the first call made inside one attaches it there. The receiver task knows
the inbox, the socket and the latch, and the client only weakly. However it ends, the engine counts as dead from then
on.

The task only waits for the socket to be readable; what is there is then taken in one go, without an await between a
message's receipt and its place in the inbox, so that no cancellation can lose one.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, cast

import zmq
import zmq.asyncio

from engine.client.base import MPClient
from engine.client.inbox import LoopInbox
from engine.client.receiving import Reception
from engine.client.resources import Resources
from engine.client.sending import Parcel, Releases, Unreachable
from engine.errors import EngineDeadError, UtilityTimeout
from engine.messages import CLIENT_ROLE, Outputs, Request, UtilityOutput, rank_role

CAUSE_LIMIT = 3.0
"""Seconds to wait for the monitor to name the cause once the engine is known to be dead by other means."""

CLOSE_LIMIT = 2.0
"""Seconds to wait for the event loop to close its sockets when the shutdown runs on another thread."""

SLICE = 128
"""Messages that are taken in before the loop's other tasks have their turn."""

OutputHook = Callable[["AsyncMPClient", Outputs], Awaitable[None]]
NotificationHook = Callable[["AsyncMPClient", UtilityOutput], Awaitable[None]]


class Attachment:
    """The client's part that lives on an event loop: inbox and receiver task. Never keeps the client alive."""

    def __init__(self, client: AsyncMPClient) -> None:
        resources: Resources = client._resources
        self._resources = resources
        self._client = weakref.ref(client)
        # Looked up on the class, so that the task need not hold an instance.
        self._hook: OutputHook | None = getattr(type(client), "process_engine_outputs", None)
        self._notification_hook: NotificationHook | None = getattr(type(client), "process_engine_notification", None)
        self.loop = asyncio.get_running_loop()
        self.inbox = LoopInbox(resources.latch)
        self._output = cast(zmq.asyncio.Socket, resources.output)
        self._reception = Reception(resources, self._notified)
        self._buried = asyncio.Event()
        self._closed = threading.Event()
        self._busy: set[asyncio.Task[Any]] = set()
        self._releases = Releases()
        self._unsent: set[asyncio.Future[None]] = set()
        self._held: Outputs | None = None
        self.task = self.loop.create_task(self._receive(), name="engine-receiver")
        self.task.add_done_callback(self._receiver_ended)
        resources.close_sockets = self._close
        resources.close_here = self._assist
        resources.latch.listen(self._call_undertaker)
        if resources.watchdog is not None:
            resources.watchdog.suspect_output = self._call_searcher

    # ---- sending ----

    async def delivered(self, parcel: Parcel | None) -> None:
        """Return once the memory on its way is not needed any more. Raises the latched error if it never got there.

        Memory takes at least a turn of the loop, however fast it went: whoever sends it can always be cancelled there.
        """
        if parcel is None:
            return
        released = self.loop.create_future()
        self._unsent.add(released)

        def then() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
                self.loop.call_soon_threadsafe(_complete, released)

        if parcel.done:
            self.loop.call_soon(_complete, released)
        else:
            self._releases.wait(parcel, then)
        try:
            await released
        finally:
            self._unsent.discard(released)
        self._resources.latch.check()
        if self._resources.parted:
            await self._await_cause()
            self._resources.latch.check()  # else the sockets are open
            if not self._resources.reachable:
                self._resources.die(Unreachable.dropped())
            self._resources.latch.check()

    async def unreachable(self, error: Unreachable) -> None:
        """The socket does not take what is sent: raises the engine's death, with its cause if that is known soon."""
        await self._await_cause()
        self._resources.die(error)
        self._resources.latch.check()

    # ---- receiving ----

    async def _receive(self) -> None:
        """The receiver: until the engine dies, a message cannot be understood, or somebody cancels it."""
        while not self._reception.over:
            await self._output.poll()
            for taken, batch in enumerate(self._batches(), 1):
                if self._hook is None:
                    self.inbox.put(batch)
                else:
                    await self._deliver(batch)
                if self._client() is None:
                    return
                if taken == SLICE:
                    await asyncio.sleep(0)
                    break
        # The dead frame, or an error that is latched by now: the cause is the monitor's to tell.
        await self._await_cause()
        self._resources.die(EngineDeadError(rank_role(0), "it sent its dead frame"))

    def _batches(self) -> Iterator[Outputs]:
        """The batches for the readers among the messages that are there, each received when it is asked for."""
        arrived = self._resources.drain_output()
        while not self._reception.over and (frames := next(arrived, None)) is not None:
            if (batch := self._reception.take(frames)) is not None:
                yield batch

    async def _deliver(self, batch: Outputs) -> None:
        """Into the inbox, whatever the hook does: a batch that was received is never lost."""
        client = self._client()
        self._held = batch
        try:
            if self._hook is not None and client is not None:
                await self._hook(client, batch)
        finally:
            self._put_held()

    def _put_held(self) -> None:
        if self._held is not None:
            self.inbox.put(self._held)
            self._held = None

    def _notified(self, notification: UtilityOutput) -> None:
        client = self._client()
        if self._notification_hook is not None and client is not None:
            task = asyncio.ensure_future(self._notification_hook(client, notification))
            self._busy.add(task)
            task.add_done_callback(self._busy.discard)

    def _call_searcher(self, number: int) -> None:
        """The watchdog calls this from its thread: message `number` was sent, where is it?"""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            self.loop.call_soon_threadsafe(self._search, number)

    def _search(self, number: int) -> None:
        """On the loop, which may have been blocked: what is there is taken; what is not there by now is lost."""
        if self._resources.released or self._reception.over:
            return
        try:
            self._take_the_rest()
        except Exception as failure:
            cause = f"what had arrived cannot be taken in: {type(failure).__name__}: {failure}"
            self._resources.die(EngineDeadError(CLIENT_ROLE, cause))
        received = self._resources.traffic.received
        if not self._reception.over and received < number:
            self._resources.die(
                EngineDeadError(rank_role(0), f"sent output {number}, and only {received} have arrived")
            )

    async def _await_cause(self) -> None:
        """Wait, within a bound, until the monitor has latched the cause."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CAUSE_LIMIT):
                await self._buried.wait()

    # ---- death ----

    def _receiver_ended(self, task: asyncio.Task[None]) -> None:
        if self._client() is None and not task.cancelled() and task.exception() is None:
            return  # the client was collected, and is being released
        how = "was cancelled" if task.cancelled() else f"ended: {task.exception() or 'no reason'}"
        self._resources.die(EngineDeadError(CLIENT_ROLE, f"the receiver task {how}"))

    def _call_undertaker(self) -> None:
        """The latch calls this once, from whatever thread found the death."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            self.loop.call_soon_threadsafe(self._bury)

    def _bury(self) -> None:
        """On the loop: what had arrived before goes to the readers, then every waiter gets the error."""
        with contextlib.suppress(Exception):  # what the receiver has failed on must not keep anybody waiting
            self._take_the_rest()
        self._reception.over = True
        self._buried.set()
        self.task.cancel()
        for released in self._unsent:
            _complete(released)
        error = self._resources.latch.error
        if error is not None:
            self._resources.calls.fail(error)
        self.inbox.close()

    def _take_the_rest(self) -> None:
        self._put_held()
        for batch in self._batches():
            self.inbox.put(batch)

    # ---- release ----

    def _close(self) -> None:
        """Close the sockets on the loop's own thread while the loop runs, else here."""
        if self._is_here() or not self.loop.is_running():
            self._close_here()
            return
        with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
            self.loop.call_soon_threadsafe(self._close_here)
            # A loop that is blocked for longer closes them itself, when it comes to it.
            if self._closed.wait(CLOSE_LIMIT) or self.loop.is_running():
                return
        self._close_here()

    def _is_here(self) -> bool:
        """Whether the loop runs on this thread."""
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False

    def _assist(self) -> None:
        """Another thread releases, and this one waits for it: if it is the loop's, it is needed."""
        if self._is_here():
            self._close_here()

    def _close_here(self) -> None:
        if self._closed.is_set():
            return
        if self.loop.is_closed():
            self._reception.over = True  # nobody waits on it any more, and its futures cannot be settled
        else:
            self._bury()
        self._resources.close_unattached()
        self._releases.close()
        self._closed.set()


def _complete(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class AsyncMPClient(MPClient):
    """Client of one engine for asyncio programs.

    Build it anywhere (the constructor blocks until the engine is ready); use it inside one event loop. Once the engine
    is dead every call but :meth:`abort_requests_async` raises the same :class:`EngineDeadError`, after
    :meth:`get_output_async` has delivered what had arrived before.

    A subclass may define two coroutines: ``process_engine_outputs(outputs)`` runs for each batch before a reader gets
    it, ``process_engine_notification(output)`` for what an engine says under the reserved call id.
    """

    _attachment: Attachment | None = None

    async def add_request_async(self, request: Request) -> None:
        attachment = self._attach()
        try:
            parcel = self._outbox.add(request)
        except Unreachable as error:
            await attachment.unreachable(error)
            return
        await attachment.delivered(parcel)

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        if not request_ids or self.dead is not None:
            return
        self._attach()
        with contextlib.suppress(EngineDeadError):
            self._outbox.abort(request_ids)

    async def call_utility_async(self, method: str, *args: Any, timeout: float | None = None) -> Any:
        attachment = self._attach()
        calls = self._resources.calls
        future: asyncio.Future[Any] = attachment.loop.create_future()
        call_id = calls.enter(method, future)
        try:
            try:
                parcel = self._outbox.call(call_id, method, args)
            except Unreachable as error:
                await attachment.unreachable(error)
                raise
            async with asyncio.timeout(timeout):
                await attachment.delivered(parcel)
                return await future
        except TimeoutError as error:
            raise UtilityTimeout(method, f"no reply to {method} came within {timeout:g} s") from error
        except EngineDeadError:
            self._resources.latch.check_open()
            raise
        finally:
            calls.leave(call_id)
            if future.done() and not future.cancelled():
                future.exception()  # asked for, so that an error which somebody else has told is not told again

    async def get_output_async(self) -> Outputs:
        return await self._attach().inbox.get()

    def _context(self) -> zmq.asyncio.Context:
        return zmq.asyncio.Context()

    def _receive(self) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return  # no loop runs yet: the first call attaches
        self._attach()

    def _attach(self) -> Attachment:
        """The part that lives on the running loop, made by the first call."""
        if self._attachment is None:
            if self._resources.released:
                self._resources.latch.check()
            self._attachment = Attachment(self)
        elif self._attachment.loop is not asyncio.get_running_loop():
            self._resources.latch.check()
            raise RuntimeError("the client is in use on another event loop")
        return self._attachment
