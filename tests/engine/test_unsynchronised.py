"""The strategy that is kept to be broken does break as reported, and its death watches still work."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
import zmq

from engine.client.aio import AsyncMPClient
from engine.errors import EngineDeadError, ExitCode
from engine.messages import Request, SamplingParams
from engine.relay.unsynchronised import UnsynchronisedRelay
from tests.engine.forks import ForkFactory, config_for, replace


def deaf(role: str) -> None:
    """Rank 1's subscription never arrives."""
    if role == "dp0.rank1":

        def connect(self: UnsynchronisedRelay) -> None:
            self._socket.connect(self._seat.address("relay"))

        replace(UnsynchronisedRelay, "connect", connect)


async def wedged(factory: ForkFactory) -> tuple[AsyncMPClient, asyncio.Task[object]]:
    """An engine that has lost its first request, well after its step deadline if it had one."""
    client = AsyncMPClient(config_for(2, relay="unsynchronised"), factory)
    await client.add_request_async(Request("a", [1, 2], SamplingParams(4)))
    reader: asyncio.Task[object] = asyncio.create_task(client.get_output_async())
    await asyncio.sleep(1.3)
    assert not reader.done()
    assert client.dead is None
    assert factory.exits() == [None, None]
    return client, reader


def test_a_lost_first_request_wedges_it_and_a_shutdown_still_ends_it() -> None:
    factory = ForkFactory(deaf)

    async def run() -> None:
        client, reader = await wedged(factory)
        began = time.monotonic()
        client.shutdown()
        assert time.monotonic() - began < 3
        with pytest.raises(EngineDeadError, match="shut down"):
            await asyncio.wait_for(reader, 1)

    asyncio.run(run())
    assert factory.living() == []


@pytest.mark.parametrize("victim", [0, 1])
def test_a_kill_is_seen_even_inside_its_unbounded_waits(victim: int) -> None:
    factory = ForkFactory(deaf)

    async def run() -> None:
        client, reader = await wedged(factory)
        os.kill(factory.processes[f"dp0.rank{victim}"].pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError) as caught:
            await asyncio.wait_for(reader, 2)
        assert caught.value.culprit == f"dp0.rank{victim}"
        client.shutdown()

    asyncio.run(run())
    assert factory.exits()[1 - victim] == ExitCode.PEER_FAILED


def test_requests_are_published_raw_without_an_envelope(tmp_path: object) -> None:
    log = f"{tmp_path}/published"

    def before(role: str) -> None:
        if role == "dp0.rank0":
            whole = zmq.Socket.send

            def send(self: zmq.Socket[bytes], data: bytes, *rest: object, **options: object) -> object:
                if self.socket_type == zmq.PUB:
                    with open(log, "ab") as file:
                        file.write(data[:1].hex().encode() + b"\n")
                return whole(self, data, *rest, **options)  # type: ignore[call-overload]

            replace(zmq.Socket, "send", send)

    async def run() -> None:
        client = AsyncMPClient(config_for(2, relay="unsynchronised"), ForkFactory(before))
        await asyncio.sleep(0.3)  # no handshake: give the subscription time
        await client.add_request_async(Request("a", [1, 2], SamplingParams(3)))
        await client.abort_requests_async(["nobody"])
        for _ in range(3):
            await asyncio.wait_for(client.get_output_async(), 2)
        client.shutdown()

    asyncio.run(run())
    with open(log) as file:
        assert file.read().split() == ["00", "01", "06"]
