"""How much one iteration takes in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from engine.endpoints import Endpoints
from engine.messages import Abort, Add, MessageType, PromptEmbeds, Request, SamplingParams, engine_identity
from engine.ports import TAKE_BYTES, Ports
from tests.engine.seats import place


class Client:
    """The other end of rank 0's ports."""

    def __init__(self, ports: Ports, router: zmq.Socket[bytes]) -> None:
        self.ports = ports
        self._router = router
        self._count = 0

    def add(self, size: int) -> None:
        """A request of about `size` bytes."""
        self._count += 1
        request = Request(f"r{self._count}", [], SamplingParams(1), PromptEmbeds(1, "float32", bytes(size)))
        self._send(MessageType.ADD, Add(self._count, request))

    def abort(self, *ids: str) -> None:
        self._count += 1
        self._send(MessageType.ABORT, Abort(self._count, list(ids)))

    def arrived(self) -> None:
        """Wait until rank 0 has received everything."""
        while self.ports.taken < self._count:
            self.ports.late_aborts()

    def _send(self, kind: MessageType, body: msgspec.Struct) -> None:
        self._router.send_multipart([engine_identity(0), kind.value, msgspec.msgpack.encode(body)])


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with place(tmp_path, 1) as here:
        endpoints = Endpoints(str(tmp_path), False)
        router, output = here.context.socket(zmq.ROUTER), here.context.socket(zmq.PULL)
        for socket, link in ((router, "input"), (output, "output")):
            socket.set_hwm(0)
            socket.bind(endpoints.address(link))
        ports = Ports(here.context, 0, here.lifeline())
        ports.connect(endpoints, 7)
        router.recv_multipart()
        yield Client(ports, router)
        ports.close()


def test_a_burst_is_taken_over_several_iterations_in_order(client: Client) -> None:
    for _ in range(10_000):
        client.add(2000)
    client.arrived()
    numbers: list[int] = []
    iterations = 0
    while len(numbers) < 10_000:
        raws = client.ports.take(block=True)
        assert 0 < sum(len(raw) for raw in raws) <= TAKE_BYTES
        numbers += [msgspec.msgpack.decode(raw[1:])[0] for raw in raws]
        iterations += 1
    assert numbers == list(range(1, 10_001))
    assert iterations == 5


def test_one_message_larger_than_the_bound_is_taken_alone(client: Client) -> None:
    for size in (100, 16 << 20, 100):
        client.add(size)
    client.arrived()
    assert [len(client.ports.take(block=True)) for _ in range(3)] == [1, 1, 1]
    assert client.ports.take(block=False) == []


def test_an_abort_behind_a_full_iteration_is_seen_until_it_is_taken(client: Client) -> None:
    client.add(3 << 20)
    client.add(3 << 20)
    client.abort("r1", "r2")
    client.arrived()
    assert len(client.ports.take(block=True)) == 1
    assert client.ports.late_aborts() == {"r1", "r2"}
    assert len(client.ports.take(block=True)) == 2
    assert client.ports.late_aborts() == frozenset()
