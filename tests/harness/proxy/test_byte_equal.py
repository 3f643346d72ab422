"""Real libzmq at both ends, and plain sockets with any stream: what comes out is what went in, to the byte."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.proxy import Leg, Trouble
from harness.proxy.handle import Proxy
from harness.zmtp import encode_command, encode_frame, encode_greeting, encode_message
from tests.harness.proxy.legs import LIMIT, Link, Sock, both, rule

SIZES = (0, 1, 254, 255, 256, 257, 8192, 65_535, 65_536, 65_537, 1 << 20, 16 << 20)
"""Bytes: around the two forms of a frame's size, around one read of the proxy, and large."""

BLOCK = b"\0" + os.urandom((16 << 20) - 1)  # nothing that could be taken for the name of a command
MESSAGES = [
    *([BLOCK[:size]] for size in SIZES),
    [b"", b"a", b"", BLOCK[:255], BLOCK[:256], b""],
    [BLOCK[: 1 << 20], b"", BLOCK[: 16 << 20], b"end"],
    *([b"%d" % number, BLOCK[:number]] for number in range(300)),
]


def carried(sender: Sock, receiver: Sock) -> bool:
    """Whether all messages arrive as they were sent, while others are still being sent."""
    sending = threading.Thread(target=lambda: [sender.send_multipart(parts) for parts in MESSAGES])
    sending.start()
    equal = [receiver.recv_multipart() == parts for parts in MESSAGES]
    sending.join()
    return all(equal)


def noted(link: Link, direction: str) -> list[int]:
    """The sizes on the wire of the messages that went in a direction; all must have passed."""
    seen = [s for s in link.seen() if s.direction == direction and not s.kind.isupper()]
    assert {s.fate for s in seen} == {"passed"}
    assert not [r for r in link.proxy.ledger().records if isinstance(r, Trouble)]
    return [s.size for s in seen]


WIRE = [len(encode_message(parts)) for parts in MESSAGES]


@both
def test_push_and_pull(link: Link) -> None:
    link.begin()
    pull, push = link.pair(zmq.PULL, zmq.PUSH)
    assert carried(push, pull)
    assert noted(link, "to_binder") == WIRE


@both
def test_pub_and_sub(link: Link) -> None:
    link.begin()
    pub, sub = link.pair(zmq.PUB, zmq.SUB)
    pub.set_hwm(0)
    sub.subscribe(b"")
    while not sub.poll(10):
        pub.send(b"are you there")  # a PUB does not tell when it knows a subscriber
    pub.send(b"now")
    while sub.recv() != b"now":
        pass
    probes = len(noted(link, "to_connector"))
    assert carried(pub, sub)
    assert noted(link, "to_connector")[probes:] == WIRE


@both
def test_xpub_and_xsub(link: Link) -> None:
    link.begin()
    xpub, xsub = link.pair(zmq.XPUB, zmq.XSUB)
    xsub.send(b"\x01")
    assert xpub.recv() == b"\x01"
    assert carried(xpub, xsub)
    assert noted(link, "to_connector") == WIRE
    xsub.send(b"not a subscription")
    assert xpub.recv() == b"not a subscription"
    xsub.send(b"\x00")
    assert xpub.recv() == b"\x00"
    kinds = [s.kind for s in link.seen() if s.direction == "to_binder"]
    assert kinds == ["READY", "SUBSCRIBE", "not", "CANCEL"]


@both
def test_router_and_dealer_both_ways(link: Link) -> None:
    link.begin()
    router, dealer = link.pair(zmq.ROUTER, zmq.DEALER)
    dealer.send(b"hello")
    who, _ = router.recv_multipart()
    sending = threading.Thread(target=lambda: [dealer.send_multipart(parts) for parts in MESSAGES])
    sending.start()
    assert all(router.recv_multipart() == [who, *parts] for parts in MESSAGES)
    sending.join()
    answering = threading.Thread(target=lambda: [router.send_multipart([who, *parts]) for parts in MESSAGES])
    answering.start()
    assert all(dealer.recv_multipart() == parts for parts in MESSAGES)
    answering.join()
    assert noted(link, "to_binder") == [len(encode_frame(b"hello")), *WIRE]
    assert noted(link, "to_connector") == WIRE


@both
def test_a_rule_that_waits_for_another_frame_changes_nothing(link: Link) -> None:
    link.begin(
        rule("drop", "*", nth=10_000), rule("corrupt", "other", index=2), rule("lag", "*", 3, match=b"\0" * 99, after=1)
    )
    pull, push = link.pair(zmq.PULL, zmq.PUSH)
    assert carried(push, pull)
    assert noted(link, "to_binder") == WIRE


@both
def test_heartbeats_are_carried_too(link: Link) -> None:
    link.begin()
    pull, push = link.socket(zmq.PULL), link.socket(zmq.PUSH)
    push.set(zmq.HEARTBEAT_IVL, 5)
    push.set(zmq.HEARTBEAT_TIMEOUT, int(LIMIT * 1000))
    pull.bind(link.up)
    push.connect(link.listen)
    assert carried(push, pull)
    assert {"PING", "PONG"} <= {s.kind for s in link.seen()}


# any stream


@pytest.fixture(scope="module")
def wires(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, socket.socket]]:
    """Where to connect, and the listener that is reached there; in one direction a rule watches without ever acting."""
    folder: Path = tmp_path_factory.mktemp("wires")
    with socket.socket(socket.AF_UNIX) as listener, Proxy() as proxy:
        listener.bind(str(folder / "up"))
        listener.listen()
        listener.settimeout(LIMIT)
        leg = Leg("relay", "dp0.rank1", "dp0.rank0", str(folder / "listen"), str(folder / "up"))
        proxy.begin([leg], [rule("drop", "*", nth=10**9, direction="to_connector")])
        yield str(folder / "listen"), listener


bodies = st.one_of(st.binary(max_size=20), st.integers(250, 260).map(bytes), st.integers(60_000, 70_000).map(bytes))
commands = st.builds(encode_command, st.sampled_from(["READY", "SUBSCRIBE", "PING", "ERROR"]), st.binary(max_size=30))
messages = st.lists(bodies, min_size=1, max_size=4).map(encode_message)
streams = st.builds(
    lambda parts, rest: encode_greeting() + b"".join(parts) + rest,
    st.lists(st.one_of(commands, messages), max_size=5),
    st.one_of(st.just(b""), st.binary(max_size=40)),  # an unfinished frame, or no ZMTP at all
)


@settings(max_examples=60, deadline=None)
@given(there=streams, back=streams, cuts=st.lists(st.integers(0, 200_000), max_size=8))
def test_any_stream_in_any_pieces_comes_out_as_it_went_in(
    wires: tuple[str, socket.socket], there: bytes, back: bytes, cuts: list[int]
) -> None:
    address, listener = wires
    with socket.socket(socket.AF_UNIX) as near:
        near.connect(address)
        near.settimeout(LIMIT)
        far, _ = listener.accept()
        with far:
            far.settimeout(LIMIT)
            edges = sorted({min(cut, len(there)) for cut in cuts} | {0, len(there)})
            pieces = [there[start:end] for start, end in itertools.pairwise(edges)]
            senders = [
                threading.Thread(target=_send, args=(near, pieces)),
                threading.Thread(target=_send, args=(far, [back])),
            ]
            for sender in senders:
                sender.start()
            assert _all_of(far) == there
            assert _all_of(near) == back
            for sender in senders:
                sender.join()


def _send(sock: socket.socket, pieces: list[bytes]) -> None:
    for piece in pieces:
        sock.sendall(piece)
    sock.shutdown(socket.SHUT_WR)


def _all_of(sock: socket.socket) -> bytes:
    data = bytearray()
    while chunk := sock.recv(1 << 20):
        data += chunk
    return bytes(data)
