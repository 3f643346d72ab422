"""What every client of an engine offers, whatever lies between the two.

A client is used either by plain calls or from one asyncio loop, never both: the methods of the other way raise
NotImplementedError.
"""

from __future__ import annotations

import abc
from typing import Any

from engine.client.named import AsyncUtilities, Utilities
from engine.config import EngineConfig
from engine.errors import EngineDeadError
from engine.launch import ProcessFactory
from engine.messages import Outputs, Request


class EngineCoreClient(Utilities, AsyncUtilities):
    """A client of one engine core."""

    @staticmethod
    def make_client(
        config: EngineConfig, *, multiprocess: bool = True, asyncio: bool = False, factory: ProcessFactory | None = None
    ) -> EngineCoreClient:
        """The client for that way of running: the engine in other processes or in this one, asyncio or plain calls.

        Raises NotImplementedError for asyncio in one process, which would block its loop in every step.
        """
        if multiprocess:
            from engine.client.aio import AsyncMPClient
            from engine.client.sync import SyncMPClient

            return AsyncMPClient(config, factory) if asyncio else SyncMPClient(config, factory)
        if asyncio:
            raise NotImplementedError("asyncio without other processes: every step would block the event loop")
        from engine.client.inproc import InprocClient

        client: EngineCoreClient = InprocClient(config)
        return client

    # ---- every client ----

    @property
    @abc.abstractmethod
    def dead(self) -> EngineDeadError | None:
        """The error that every call raises from now on, or None while the engine takes calls."""

    @abc.abstractmethod
    def check_health(self) -> None:
        """Raise if a request submitted now could not complete: the latched :class:`EngineDeadError`, or
        :class:`engine.errors.EngineStalledError`. An engine whose scheduler is paused is well."""

    @abc.abstractmethod
    def shutdown(self, timeout: float | None = None, *, drain: bool = False) -> None:
        """Stop the engine (in order within `timeout` seconds, then by signals) and give everything back. Idempotent.

        What is under way is aborted or, with `drain`, finished first; new requests are refused. Either way its outputs
        can still be read, and then every call raises :class:`EngineDeadError`. The default is `timeouts.shutdown`; less
        than 0 counts as 0, more than :data:`engine.config.LONGEST` as that. Raises ValueError, and stops nothing, for
        what is no number of seconds.
        """

    # ---- plain calls ----

    def get_output(self, timeout: float | None = None) -> Outputs:
        """The next outputs, in the order in which the engine sent them.

        Raises TimeoutError after `timeout` seconds, and the latched :class:`EngineDeadError` once nothing is left.
        """
        raise NotImplementedError

    def add_request(self, request: Request) -> None:
        """Send a request.

        Raises :class:`EngineDeadError` if the engine is dead, :class:`engine.errors.EngineBusyError` if as many
        requests are under way as it may hold, :class:`engine.errors.EngineGenerateError` for a request that cannot be
        sent.
        """
        raise NotImplementedError

    def abort_requests(self, request_ids: list[str]) -> None:
        """Ask for the end of requests. Unknown ids are ignored; so is everything once the engine is dead."""
        raise NotImplementedError

    def call_utility(self, method: str, *args: Any, timeout: float | None = None) -> Any:
        """Call a method of the engine, see :mod:`engine.utilities`, and return what it returns.

        Raises :class:`engine.errors.UtilityError` if it fails there, :class:`engine.errors.UtilityTimeout` after
        `timeout` seconds without a reply, :class:`EngineDeadError` if the engine is or gets dead.
        """
        raise NotImplementedError

    def collective_rpc(self, method: str, *args: Any, timeout: float | None = None) -> list[Any]:
        """Call a worker method on every rank; what each returned, by rank. Raises as :meth:`call_utility`."""
        result: list[Any] = self.call_utility("collective_rpc", method, list(args), timeout=timeout)
        return result

    # ---- asyncio ----

    async def get_output_async(self) -> Outputs:
        """As :meth:`get_output`."""
        raise NotImplementedError

    async def add_request_async(self, request: Request) -> None:
        """As :meth:`add_request`; returns once the request's arrays are not needed any more.

        Cancelled while it waits for that, the request is under way all the same.
        """
        raise NotImplementedError

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        """As :meth:`abort_requests`."""
        raise NotImplementedError

    async def call_utility_async(self, method: str, *args: Any, timeout: float | None = None) -> Any:
        """As :meth:`call_utility`. Cancelled, the engine may still do what was asked; its reply is dropped."""
        raise NotImplementedError

    async def collective_rpc_async(self, method: str, *args: Any, timeout: float | None = None) -> list[Any]:
        """As :meth:`collective_rpc`."""
        result: list[Any] = await self.call_utility_async("collective_rpc", method, list(args), timeout=timeout)
        return result
