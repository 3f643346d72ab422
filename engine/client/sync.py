"""The client for plain calls: any threads may call it, one thread of its own receives.

The receiver thread, named ``engine-receiver``, owns the output socket from beginning to end; the callers share the
input socket under a lock. The thread knows the inbox, the socket and the latch, never the client. However it ends, the
engine counts as dead from then on.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import zmq

from engine.client.base import MPClient
from engine.client.inbox import ThreadInbox
from engine.client.receiving import Reception
from engine.client.resources import Resources
from engine.client.sending import Parcel, Releases, Unreachable
from engine.clock import Deadline
from engine.errors import EngineDeadError, UtilityTimeout
from engine.messages import CLIENT_ROLE, Outputs, Request, rank_role
from engine.wake import Wake

CAUSE_LIMIT = 3.0
"""Seconds to wait for the monitor to name the cause once the engine is known to be dead by other means."""

CLOSE_LIMIT = 2.0
"""Seconds to wait for the receiver thread to close its socket."""


class Receiver:
    """The thread, and what it shares with the callers."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._reception = Reception(resources, lambda _: None)
        self._output: zmq.Socket[bytes] = resources.output
        self._wake = Wake()
        self._suspected = 0
        self._released = threading.Event()
        self._releases = Releases()
        self._unsent: set[threading.Event] = set()
        self.inbox = ThreadInbox(resources.latch)
        self.sending = threading.RLock()
        """Held while something is put on the input socket. A signal's handler may want it while its thread has it."""
        self._closed = threading.Event()
        self._forsaken = False
        self._thread = threading.Thread(target=self._run, name="engine-receiver", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self._wake.close()
            raise
        resources.threads.append(self._thread)
        resources.close_sockets = self._close
        resources.forget_reader = self._disown
        if resources.watchdog is not None:
            resources.watchdog.suspect_output = self._suspect
        resources.latch.listen(self._wake.call)

    def _run(self) -> None:
        try:
            self._receive()
        except Exception as failure:
            cause = f"the receiver thread failed: {type(failure).__name__}: {failure}"
            self._resources.die(EngineDeadError(CLIENT_ROLE, cause))
        finally:
            self._bury()
        self._released.wait()
        self._output.close(linger=0)
        self._closed.set()
        if self._forsaken:
            self._close_rest()

    def _receive(self) -> None:
        """Until the engine dies or a message cannot be understood."""
        poller = zmq.Poller()
        poller.register(self._output, zmq.POLLIN)
        poller.register(self._wake.fileno(), zmq.POLLIN)
        while self._resources.latch.error is None and not self._reception.over:
            poller.poll()
            self._wake.clear()
            self._take_what_is_there()
            received = self._resources.traffic.received
            if not self._reception.over and received < self._suspected:
                cause = f"sent output {self._suspected}, and only {received} have arrived"
                self._resources.die(EngineDeadError(rank_role(0), cause))
        # After the dead frame the cause is the monitor's to tell.
        if not self._resources.latch.wait(CAUSE_LIMIT):
            self._resources.die(EngineDeadError(rank_role(0), "it sent its dead frame"))
        self._take_what_is_there()

    def _take_what_is_there(self) -> None:
        arrived = self._resources.drain_output()
        while not self._reception.over and (frames := next(arrived, None)) is not None:
            if (batch := self._reception.take(frames)) is not None:
                self.inbox.put(batch)

    def await_release(self, parcel: Parcel, deadline: Deadline) -> bool:
        """Return once the memory on its way is let go or the engine is dead; False at the deadline."""
        released = threading.Event()
        with self.sending:
            self._unsent.add(released)
            self._releases.wait(parcel, released.set)
        try:
            # A burial that is over did not find this one, but then the error is there.
            return self._resources.latch.error is not None or released.wait(deadline.remaining())
        finally:
            self._unsent.discard(released)

    def _bury(self) -> None:
        """Every waiter gets the error."""
        error = self._resources.latch.error
        if error is not None:
            self._resources.calls.fail(error)
        for released in list(self._unsent):
            released.set()
        self.inbox.close()

    def _suspect(self, number: int) -> None:
        """The watchdog calls this from its thread: message `number` was sent, where is it?"""
        self._suspected = number
        self._wake.call()

    def _close(self) -> None:
        """Have the output socket closed by its own thread, the rest here."""
        self._released.set()
        self._releases.close()
        if not self._closed.wait(CLOSE_LIMIT):
            # The thread is inside somebody's finalizer. Its socket is its own, and it closes the rest too, at its end.
            self._forsaken = True
            if not self._closed.is_set():
                return
        self._thread.join(CLOSE_LIMIT)
        self._close_rest()

    def _close_rest(self) -> None:
        self._wake.close()
        with self.sending:
            self._resources.close_unattached()

    def _disown(self) -> None:
        self.sending = threading.RLock()
        self.inbox.disown()
        self._wake.disown()


class SyncMPClient(MPClient):
    """Client of one engine for plain calls from any threads.

    Once the engine is dead every call but :meth:`abort_requests` raises the same :class:`EngineDeadError`, after
    :meth:`get_output` has delivered what had arrived before.
    """

    _receiver: Receiver

    def add_request(self, request: Request) -> None:
        self._delivered(self._send(lambda: self._outbox.add(request)), Deadline.never())

    def abort_requests(self, request_ids: list[str]) -> None:
        if request_ids and self.dead is None:
            with contextlib.suppress(EngineDeadError):
                self._send(lambda: self._outbox.abort(request_ids))

    def call_utility(self, method: str, *args: Any, timeout: float | None = None) -> Any:
        deadline = Deadline.after(timeout)
        calls = self._resources.calls
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        call_id = calls.enter(method, future)
        try:
            self._delivered(self._send(lambda: self._outbox.call(call_id, method, args)), deadline)
            return future.result(deadline.remaining())
        except concurrent.futures.TimeoutError as error:
            raise UtilityTimeout(method, f"no reply to {method} came within {timeout:g} s") from error
        except EngineDeadError:
            self._resources.latch.check_open()
            raise
        finally:
            calls.leave(call_id)

    def get_output(self, timeout: float | None = None) -> Outputs:
        return self._receiver.inbox.get(Deadline.after(timeout))

    def _receive(self) -> None:
        self._receiver = Receiver(self._resources)

    def _send(self, send: Callable[[], Parcel | None]) -> Parcel | None:
        try:
            with self._receiver.sending:
                return send()
        except Unreachable as error:
            # Why, is the monitor's to tell, if it does so soon.
            self._resources.latch.wait(CAUSE_LIMIT)
            self._resources.die(error)
            self._resources.latch.check()
            raise

    def _delivered(self, parcel: Parcel | None, deadline: Deadline) -> None:
        """Return once the memory on its way is not needed any more.

        Raises the latched error if it never got there, TimeoutError at the deadline.
        """
        if parcel is None or parcel.done:
            return
        if not self._receiver.await_release(parcel, deadline):
            raise TimeoutError
        resources = self._resources
        with self._receiver.sending:
            resources.latch.check()  # else the sockets are open
            if not resources.parted:
                return
        resources.latch.wait(CAUSE_LIMIT)
        with self._receiver.sending:
            resources.latch.check()
            if not resources.reachable:
                resources.die(Unreachable.dropped())
        resources.latch.check()
