"""What rank 0 takes from its clients, how much of it in one iteration, and what it answers by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine.clock import Deadline
from engine.codec import Array, Decoder, Encoder, packed, sealed
from engine.core import StepResult
from engine.errors import InputError
from engine.messages import (
    ENGINE_CORE_DEAD,
    Abort,
    Add,
    ErrorKind,
    FinishReason,
    Init,
    MessageType,
    Outputs,
    Request,
    RequestOutput,
    SamplingParams,
    SchedulerStats,
    Utility,
    UtilityOutput,
    Welcome,
)
from engine.ports import TAKE_BYTES, Incoming, Ports
from tests.engine.peers import PATIENCE, Peer
from tests.engine.seats import place

WELCOME = Welcome(7, 0, 0, 512, 64, 16)


class Client(Peer):
    """A client, and the ports that it speaks to."""

    ports: Ports

    def arrived(self) -> None:
        """Wait until rank 0 has received everything."""
        while self.ports.numbers[self.index][0] < self.count:
            self.ports.late_aborts()


@contextmanager
def serving(tmp_path: Path, count: int) -> Iterator[list[Client]]:
    """The ports of an engine that so many clients use, and these, welcomed."""
    with place(tmp_path, 1) as here:
        clients = [Client(here.context, index, here.address) for index in range(count)]
        ports = Ports(here.context, 0, here.lifeline(), count)
        inputs, outputs = zip(*(client.addresses for client in clients), strict=True)
        ports.connect(Init(7, list(inputs), list(outputs)), WELCOME)
        for client in clients:
            client.ports = ports
            assert client.welcomed() == msgspec.structs.replace(WELCOME, client_index=client.index)
        yield clients
        ports.close()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with serving(tmp_path, 1) as (one,):
        yield one


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[list[Client]]:
    with serving(tmp_path, 2) as both:
        yield both


def names(taken: list[Incoming]) -> list[tuple[int, int]]:
    return [(one.message.client_index, one.message.number) for one in taken]


# ---- how much ----


def test_a_burst_is_taken_over_several_iterations_in_order(client: Client) -> None:
    for _ in range(10_000):
        client.weigh(2000)
    client.arrived()
    numbers: list[int] = []
    iterations = 0
    while len(numbers) < 10_000:
        taken = client.ports.take(block=True)
        assert 0 < sum(one.size for one in taken) <= TAKE_BYTES
        numbers += [one.message.number for one in taken]
        iterations += 1
    assert numbers == list(range(1, 10_001))
    assert iterations == 5


def test_one_message_larger_than_the_bound_is_taken_alone(client: Client) -> None:
    for size in (100, 16 << 20, 100):
        client.weigh(size)
    client.arrived()
    assert [len(client.ports.take(block=True)) for _ in range(3)] == [1, 1, 1]
    assert client.ports.take(block=False) == []


def test_an_abort_behind_a_full_iteration_is_seen_until_it_is_taken(client: Client) -> None:
    client.weigh(3 << 20)
    client.weigh(3 << 20)
    client.abort("r1", "r2")
    client.arrived()
    assert len(client.ports.take(block=True)) == 1
    assert client.ports.late_aborts() == {(0, "r1"), (0, "r2")}
    assert len(client.ports.take(block=True)) == 2
    assert client.ports.late_aborts() == frozenset()


def test_a_burst_of_one_client_keeps_no_other_waiting_and_each_keeps_its_order(clients: list[Client]) -> None:
    burst, other = clients
    for _ in range(9):
        burst.weigh(1 << 20)
    for _ in range(3):
        other.weigh(1)
    burst.arrived()
    other.arrived()
    first = names(burst.ports.take(block=True))
    assert first == [(0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (1, 3)]
    assert names(burst.ports.take(block=False)) == [(0, 4), (0, 5), (0, 6)]
    other.weigh(1)
    other.arrived()
    # The turn is that of the message which did not fit.
    assert names(burst.ports.take(block=False)) == [(0, 7), (1, 4), (0, 8), (0, 9)]


def test_late_aborts_are_told_with_whose_they_are(clients: list[Client]) -> None:
    clients[0].abort("same")
    clients[1].abort("same", "other")
    for client in clients:
        client.arrived()
    ports = clients[0].ports
    assert ports.late_aborts() == {(0, "same"), (1, "same"), (1, "other")}
    assert len(ports.take(block=False)) == 2
    assert ports.late_aborts() == frozenset()


def test_what_came_in_aux_frames_goes_on_in_one_body(client: Client) -> None:
    rows = np.arange(96, dtype=np.float64).reshape(1, 96)
    request = Request("a", [], SamplingParams(1), Array.of(rows))
    client.send(MessageType.ADD, Add(1, request))
    (incoming,) = client.ports.take(block=True)
    assert len(incoming.frames) == 2
    assert incoming.raw[:1] == MessageType.ADD.value
    assert Decoder(Add).decode([incoming.raw[1:]]) == incoming.message == Add(1, request)


# ---- what is out of order is the end, what can be answered is answered ----


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([b"\x00"], "input.1 message of one frame, expected a type byte and a body"),
        ([b"\x07", b"\x91\x01"], "input.1 message of unknown type 07"),
        ([b"", b"\x91\x01"], "input.1 message of unknown type nothing"),
        ([b"\x00", sealed(b"\xc1")], "input.1 message of type 00 cannot be read"),
        ([b"\x00", packed([1])], "input.1 message of type 00 cannot be read"),
        ([b"\x00", packed([True, ["a", 5]])], "input.1 message of type 00 cannot be read"),
        ([b"\x00", packed([1, [5, [1]]])], "input.1 message of type 00 cannot be read"),
        ([b"\x01", packed([1, "a"])], "input.1 message of type 01 cannot be read"),
        ([b"\x03", packed([1, 1, "call", "echo"])], "input.1 message of type 03 cannot be read"),
        ([b"\x03", sealed(b"\x95\1\1\1\xa1x" + b"\x91" * 9999 + b"\0")], "input.1 message of type 03 cannot be read"),
        ([b"\x00", packed([2, ["a", 5], 1])], "input.1 message 2 after 0, expected 1"),
        ([b"\x00", packed(Add(2, Request("a", [1]), 1))], "input.1 message 2 after 0, expected 1"),
        ([b"\x00", packed(Add(1, Request("a", [1])))], "message 1 says client 0, expected client 1"),
        ([b"\x00", packed([1, ["a", 5], 0])], "input.1 message 1 says client 0, expected client 1"),
        ([b"\x01", packed(Abort(1, ["a"]))], "input.1 message 1 says client 0, expected client 1"),
        ([b"\x03", packed([1, 2, 9, "echo", []])], "message 1 says client 2, expected client 1"),
        ([b"\x03", packed([1, 2, 9, "echo", 0])], "message 1 says client 2, expected client 1"),
    ],
)
def test_a_message_that_is_nobodys_next_one_is_an_error(frames: list[bytes], text: str, clients: list[Client]) -> None:
    clients[1].send_frames(*frames)
    with pytest.raises(InputError) as caught:
        clients[0].ports.take(block=True)
    assert text in str(caught.value)


def test_a_request_that_cannot_be_read_is_refused_and_the_next_one_is_taken(clients: list[Client]) -> None:
    client = clients[1]
    client.send(MessageType.ADD, [1, ["bad", "no token ids"], 1])
    client.send(MessageType.ADD, [2, ["unknown array", [], [], msgspec.msgpack.Ext(9, b"")], 1])
    client.send_frames(b"\x00", Encoder().encode(Add(3, Request("lost part", [], embeds=rows(96)), 1))[0])
    client.weigh(1)
    client.arrived()
    assert names(client.ports.take(block=True)) == [(1, 4)]
    for number, request_id in enumerate(("bad", "unknown array", "lost part"), 1):
        record = client.read()
        (output,) = record.outputs
        assert record.number == number
        assert (output.request_id, output.token_ids) == (request_id, [])
        assert (output.finish_reason, output.error_kind) == (FinishReason.ERROR, ErrorKind.INVALID)
        assert output.error is not None
        assert output.error.startswith("the request cannot be read: ")


def rows(count: int) -> Array:
    return Array("float64", (1, count), bytes(8 * count))


def test_a_call_that_cannot_be_read_is_answered(clients: list[Client]) -> None:
    client = clients[1]
    client.send(MessageType.UTILITY, [1, 1, 2**64 - 1, "echo", "no list"])
    client.send(MessageType.UTILITY, [2, 1, 7, 5, []])
    client.send_frames(b"\x03", Encoder().encode(Utility(3, 1, 8, "echo", [rows(96)]))[0])
    client.call(9)
    client.arrived()
    assert names(client.ports.take(block=True)) == [(1, 4)]
    for call_id, method in ((2**64 - 1, "echo"), (7, "unknown"), (8, "echo")):
        reply = client.read().utility
        assert reply is not None
        assert reply.call_id == call_id
        assert reply.failure is not None
        assert reply.failure.startswith(f"Call to {method} method failed: the call cannot be read: ")


def test_a_wait_ends_with_nothing_when_all_was_answered(client: Client) -> None:
    client.send(MessageType.ADD, [1, ["bad", 5]])
    assert client.ports.take(block=True) == []
    assert client.ports.numbers == [(1, 1)]


# ---- outputs ----

STATS = SchedulerStats(0, 1, 5, 3)


def test_each_client_gets_its_own_outputs_and_replies_with_numbers_of_its_own(clients: list[Client]) -> None:
    ports = clients[0].ports
    ours, theirs = RequestOutput("same", [1]), RequestOutput("same", [2])
    reply = UtilityOutput(5, None, "done")
    ports.send(StepResult({1: [theirs]}))
    ports.send(StepResult({0: [ours], 1: [theirs]}, [(1, reply)]))
    assert clients[0].read() == Outputs(1, 0, [ours])
    assert clients[1].read() == Outputs(1, 0, [theirs])
    assert clients[1].read() == Outputs(2, 0, [theirs])
    assert clients[1].read() == Outputs(3, 0, [], reply)
    ports.send(StepResult())
    assert ports.numbers == [(0, 1), (0, 3)]


def test_stats_ride_along_or_come_alone_but_only_to_who_is_there(clients: list[Client]) -> None:
    ports, output = clients[0].ports, RequestOutput("a", [1])
    ports.send(StepResult({0: [output]}, stats=STATS))
    ports.send(StepResult(stats=STATS))
    assert clients[0].read() == Outputs(1, 0, [output], None, STATS)
    assert clients[0].read() == Outputs(2, 0, [], None, STATS)
    assert ports.numbers == [(0, 2), (0, 0)]
    clients[1].abort("nothing")
    clients[1].arrived()
    ports.send(StepResult({}, [(0, UtilityOutput(1))], STATS))
    assert clients[1].read() == Outputs(1, 0, [], None, STATS)
    assert [clients[0].read(), clients[0].read()] == [
        Outputs(3, 0, [], None, STATS),
        Outputs(4, 0, [], UtilityOutput(1)),
    ]


@pytest.mark.parametrize("result", [object(), 2**70, "\ud800", np.array([object()])])
def test_a_result_that_cannot_be_sent_is_a_reply_that_says_so(result: object, client: Client) -> None:
    client.ports.send(StepResult({}, [(0, UtilityOutput(4, None, result)), (0, UtilityOutput(5))]))
    reply = client.read().utility
    assert reply is not None
    assert reply.call_id == 4
    assert reply.failure is not None
    assert reply.failure.startswith("the result cannot be sent: ")
    assert client.read() == Outputs(2, 0, [], UtilityOutput(5))


def test_the_dead_frame_comes_to_all_behind_what_was_sent_although_one_cannot_be_told(clients: list[Client]) -> None:
    ports = clients[0].ports
    ports.send(StepResult({0: [RequestOutput("a", [1])], 1: [RequestOutput("b", [2])]}))
    ports._ports[0].output.close(linger=-1)
    ports.send_dead()
    assert clients[1].read().outputs == [RequestOutput("b", [2])]
    assert clients[1].read_frames() == [ENGINE_CORE_DEAD]
    assert clients[0].read().outputs == [RequestOutput("a", [1])]


# ---- a client that has left ----


def test_a_client_that_has_left_is_forgotten_and_the_others_go_on(clients: list[Client]) -> None:
    ports = clients[0].ports
    for client in clients:
        client.weigh(1)
        client.abort("r1")
        client.arrived()
    ports.drop(1)
    assert ports.late_aborts() == {(0, "r1")}
    assert names(ports.take(block=True)) == [(0, 1), (0, 2)]
    reply = UtilityOutput(5)
    ports.send(StepResult({0: [RequestOutput("a", [1])], 1: [RequestOutput("b", [2])]}, [(1, reply)], STATS))
    assert clients[0].read().outputs == [RequestOutput("a", [1])]
    assert ports.numbers[1] == (2, 0)
    ports.drop(1)
    ports.refuse("over", waiting=True)
    ports.send_dead()


# ---- when the engine is closing ----


def test_what_comes_too_late_is_answered_and_what_had_come_is_still_taken(client: Client) -> None:
    client.weigh(1)
    client.arrived()
    client.ports.refuse("shutting down", waiting=False)
    client.weigh(1)
    client.call(7, "echo")
    client.abort("r1")
    client.arrived()
    assert names(client.ports.take(block=False)) == [(0, 1), (0, 4)]
    assert client.read() == Outputs(1, 0, [RequestOutput("r2", [], FinishReason.ABORT, "shutting down")])
    assert client.read() == Outputs(2, 0, [], UtilityOutput(7, "Call to echo method failed: shutting down"))


def test_what_was_said_before_the_stop_is_in_time_however_late_it_comes(client: Client) -> None:
    client.ports.expect(2)
    client.ports.refuse("shutting down", waiting=False)
    client.ports.await_expected(Deadline.after(0))
    for _ in range(2):
        client.weigh(1)
    client.ports.await_expected(Deadline.never())
    assert not client.ports.expecting
    client.weigh(1)
    client.arrived()
    assert names(client.ports.take(block=False)) == [(0, 1), (0, 2)]
    assert client.read().outputs == [RequestOutput("r3", [], FinishReason.ABORT, "shutting down")]


def test_at_the_end_everything_that_was_not_taken_is_answered(client: Client) -> None:
    client.weigh(1)
    client.call(7, "echo")
    client.abort("r1")
    client.arrived()
    client.ports.refuse("shutting down", waiting=True)
    assert client.read().outputs == [RequestOutput("r1", [], FinishReason.ABORT, "shutting down")]
    assert client.read().utility == UtilityOutput(7, "Call to echo method failed: shutting down")
    assert client.ports.take(block=False) == []
    assert client.ports.late_aborts() == frozenset()


def test_at_the_end_what_still_lies_in_the_socket_is_answered_too(client: Client) -> None:
    client.weigh(1)
    assert client.ports._ports[0].input.poll(PATIENCE)
    client.ports.refuse("shutting down", waiting=True)
    assert client.read().outputs == [RequestOutput("r1", [], FinishReason.ABORT, "shutting down")]
    assert client.ports.numbers == [(1, 1)]
