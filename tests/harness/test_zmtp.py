"""The ZMTP reader: any chunking gives the same items, no byte is lost, and libzmq's own traffic is understood."""

from __future__ import annotations

import contextlib
import itertools
import random
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.zmtp import (
    Assembler,
    Frame,
    Greeting,
    Message,
    Parser,
    Subscription,
    Unit,
    ZmtpError,
    encode_command,
    encode_frame,
    encode_greeting,
    encode_message,
)

bodies = st.one_of(st.binary(max_size=20), st.integers(250, 260).map(bytes), st.binary(min_size=256, max_size=400))
commands = st.builds(encode_command, st.sampled_from(["READY", "SUBSCRIBE", "PING", "ERROR"]), bodies)
messages = st.lists(bodies, min_size=1, max_size=4).map(encode_message)
streams = st.lists(st.one_of(commands, messages), max_size=6).map(lambda parts: encode_greeting() + b"".join(parts))


def chunked(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def read(chunks: list[bytes]) -> tuple[list[Unit], bytes, tuple[int, str] | None]:
    """All units (the greeting joined), the bytes left over, and the fault."""
    assembler, units, rest, fault = Assembler(), [], b"", None
    for chunk in chunks:
        try:
            units += assembler.feed(chunk)
        except ZmtpError as error:
            units += error.items
            rest += error.rest
            fault = (error.offset, error.expected)
    greeting = b"".join(unit.raw for unit in units if isinstance(unit, Greeting))
    return [Greeting(greeting), *(u for u in units if not isinstance(u, Greeting))], rest + assembler.flush(), fault


@settings(max_examples=150, deadline=None)
@given(streams, st.lists(st.integers(0, 2000), max_size=30))
def test_any_chunking_gives_the_same_units_and_every_byte(stream: bytes, cuts: list[int]) -> None:
    units, rest, fault = read(chunked(stream, cuts))
    assert (units, rest, fault) == read([stream])
    assert fault is None
    assert b"".join(unit.raw for unit in units) + rest == stream


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.builds(lambda good, bad: good + bad, streams, st.binary(max_size=60)),
        st.builds(lambda good, at, octet: good[:at] + bytes((octet,)) + good[at:], streams, *[st.integers(0, 255)] * 2),
    ),
    st.lists(st.integers(0, 2000), max_size=30),
)
def test_garbage_is_refused_at_the_same_byte_and_never_lost(stream: bytes, cuts: list[int]) -> None:
    units, rest, fault = read(chunked(stream, cuts))
    assert (units, rest, fault) == read([stream])
    assert b"".join(unit.raw for unit in units) + rest == stream


@settings(max_examples=50, deadline=None)
@given(streams)
def test_every_place_where_a_stream_can_be_cut_gives_the_same_units(stream: bytes) -> None:
    whole = read([stream])
    for cut in range(len(stream)):
        assert read([stream[:cut], stream[cut:]]) == whole
    assert read([stream[at : at + 1] for at in range(len(stream))]) == whole


def test_a_large_frame_in_many_pieces_is_one_unit() -> None:
    body = random.Random(0).randbytes(16 << 20)
    stream = encode_greeting() + encode_message([b"head", body]) + encode_frame(b"tail")
    for size in (1000, 65_536, 1 << 20):
        units, rest, fault = read([stream[at : at + size] for at in range(0, len(stream), size)])
        assert (rest, fault) == (b"", None)
        assert [unit.bodies for unit in units if isinstance(unit, Message)] == [[b"head", body], [b"tail"]]


@settings(max_examples=150, deadline=None)
@given(bodies, st.booleans(), st.booleans())
def test_a_frame_that_is_encoded_is_read_back_with_its_flags(body: bytes, more: bool, wide: bool) -> None:
    encoded = encode_frame(body, more=more, long=wide or len(body) > 255)
    _, frame = Parser().feed(encode_greeting() + encoded)
    assert isinstance(frame, Frame)
    assert (frame.body, frame.data, frame.raw) == (body, body, encoded)
    assert (frame.more, frame.long, frame.command) == (more, wide or len(body) > 255, False)


@settings(max_examples=150, deadline=None)
@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=255), bodies)
def test_a_command_that_is_encoded_is_read_back(name: str, data: bytes) -> None:
    encoded = encode_command(name, data)
    _, frame = Parser().feed(encode_greeting() + encoded)
    assert isinstance(frame, Frame)
    assert (frame.name, frame.data, frame.raw) == (name, data, encoded)
    assert (frame.command, frame.more) == (True, False)


@settings(max_examples=50, deadline=None)
@given(st.lists(bodies, min_size=1, max_size=5))
def test_what_is_encoded_is_read_back(parts: list[bytes]) -> None:
    units = Assembler().feed(encode_greeting() + encode_message(parts))
    assert isinstance(units[-1], Message)
    assert units[-1].bodies == parts


def test_each_greeting_byte_comes_out_as_soon_as_it_is_in() -> None:
    parser = Parser()
    greeting = encode_greeting("PLAIN", minor=0)
    for octet in greeting:
        assert parser.feed(bytes((octet,))) == [Greeting(bytes((octet,)))]
    assert parser.version == (3, 0)
    assert parser.mechanism == "PLAIN"
    assert parser.pending == 0


def test_a_command_between_the_parts_of_a_message_comes_first() -> None:
    ping = encode_command("PING", b"\0\0")
    first, last = encode_frame(b"a", more=True), encode_frame(b"b")
    _, command, message = Assembler().feed(encode_greeting() + first + ping + last)
    assert isinstance(command, Frame)
    assert command.name == "PING"
    assert isinstance(message, Message)
    assert message.raw == first + last


def test_both_forms_of_subscription_are_understood() -> None:
    forms = [
        encode_command("SUBSCRIBE", b"abc"),
        encode_command("CANCEL", b"abc"),
        encode_frame(b"\x01abc"),
        encode_frame(b"\x00abc"),
        encode_frame(b"\x01abc", more=True),
        encode_frame(b"\x02abc"),
        encode_frame(b""),
        encode_command("PING", b"\0\0"),
    ]
    frames = Parser().feed(encode_greeting() + b"".join(forms))[1:]
    found = [frame.subscription for frame in frames if isinstance(frame, Frame)]
    on, off = Subscription(True, b"abc"), Subscription(False, b"abc")
    assert found == [on, off, on, off, None, None, None, None]


@pytest.mark.parametrize(
    ("stream", "offset", "expected"),
    [
        (b"\x00", 0, "0xFF"),
        (b"GET / HTTP/1.1", 0, "0xFF"),
        (encode_greeting()[:9] + b"\x00", 9, "0x7F"),
        (encode_greeting()[:10] + b"\x01", 10, "major version"),
        (encode_greeting() + b"\x08", 64, "flags"),
        (encode_greeting() + encode_frame(b"ok") + b"\x05", 68, "flags"),
        (encode_greeting() + b"\x02" + b"\xff" * 8, 65, "at most 1000 bytes"),
        (encode_greeting() + encode_frame(bytes(1001)), 65, "at most 1000 bytes"),
        (encode_greeting() + encode_frame(b"", command=True), 66, "name"),
        (encode_greeting() + encode_frame(b"\x09READY", command=True), 66, "name"),
    ],
)
def test_an_error_names_the_byte_and_what_was_expected(stream: bytes, offset: int, expected: str) -> None:
    parser = Parser(limit=1000)
    with pytest.raises(ZmtpError, match=f"at byte {offset}: expected .*{expected}") as caught:
        parser.feed(stream)
    assert b"".join(item.raw for item in caught.value.items) + caught.value.rest == stream
    with pytest.raises(ZmtpError) as again:
        parser.feed(b"more")
    assert (again.value.offset, again.value.rest) == (offset, b"more")


def test_metadata_cut_short_is_an_error() -> None:
    parser = Parser()
    _, whole, cut = parser.feed(
        encode_greeting()
        + encode_command("READY", b"\x0bSocket-Type\0\0\0\x03SUB\x08Identity\0\0\0\0")
        + encode_command("READY", b"\x0bSocket-Type\0\0\0\x09SUB")
    )
    assert isinstance(whole, Frame)
    assert whole.properties == {"socket-type": b"SUB", "identity": b""}
    assert isinstance(cut, Frame)
    with pytest.raises(ZmtpError, match="byte 0"):
        _ = cut.properties


def test_the_writer_refuses_what_no_peer_could_read() -> None:
    with pytest.raises(ValueError, match="MORE"):
        encode_frame(b"", more=True, command=True)
    with pytest.raises(ValueError, match="at most 255"):
        encode_frame(bytes(256), long=False)
    with pytest.raises(ValueError, match="1 to 255"):
        encode_command("")
    with pytest.raises(ValueError, match="at least one part"):
        encode_message([])
    assert encode_frame(b"a", long=True) == b"\x02" + bytes(7) + b"\x01a"


class Tap:
    """Copies one ipc connection and keeps the bytes of each direction."""

    def __init__(self, path: str, upstream: str) -> None:
        self.sent: dict[str, bytes] = {"from_connector": b"", "from_binder": b""}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._upstream = upstream
        self._thread = threading.Thread(target=self._copy)
        self._thread.start()

    def _copy(self) -> None:
        near, _ = self._listener.accept()
        far = socket.socket(socket.AF_UNIX)
        far.connect(self._upstream)
        with near, far:
            while True:
                for source in select.select([near, far], [], [])[0]:
                    try:
                        data = source.recv(1000)
                        sink, key = (far, "from_connector") if source is near else (near, "from_binder")
                        sink.sendall(data)
                    except OSError:
                        return
                    if not data:
                        return
                    self.sent[key] += data

    def close(self) -> None:
        self._thread.join(10)
        self._listener.close()


@contextlib.contextmanager
def tapped(
    folder: Path, binder: int, connector: int, heartbeat_ms: int = 0
) -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes], Tap]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    a, b = context.socket(binder), context.socket(connector)
    for sock in (a, b):
        sock.setsockopt(zmq.RCVTIMEO, 10_000)
        sock.setsockopt(zmq.LINGER, 0)
    b.setsockopt(zmq.HEARTBEAT_IVL, heartbeat_ms)
    a.bind(f"ipc://{folder}/up")
    tap = Tap(f"{folder}/tap", f"{folder}/up")
    b.connect(f"ipc://{folder}/tap")
    try:
        yield a, b, tap
    finally:
        a.close()
        b.close()
        context.term()
        tap.close()


def understood(data: bytes) -> tuple[list[str], list[list[bytes]], Frame]:
    """Names of the commands, bodies of the messages, and READY of one captured direction."""
    units, rest, fault = read([data])
    assert (rest, fault) == (b"", None)
    assert b"".join(unit.raw for unit in units) == data
    frames = [unit for unit in units if isinstance(unit, Frame)]
    return [str(f.name) for f in frames], [u.bodies for u in units if isinstance(u, Message)], frames[0]


def test_libzmq_pub_sub(tmp_path: Path) -> None:
    with tapped(tmp_path, zmq.XPUB, zmq.SUB) as (pub, sub, tap):
        sub.subscribe(b"t")
        assert pub.recv() == b"\x01t"
        pub.send_multipart([b"t", bytes(70_000)])
        assert sub.recv_multipart() == [b"t", bytes(70_000)]
        sub.unsubscribe(b"t")
        assert pub.recv() == b"\x00t"
    names, found, ready = understood(tap.sent["from_binder"])
    assert (names, found) == (["READY"], [[b"t", bytes(70_000)]])
    assert ready.properties["socket-type"] == b"XPUB"
    units, _, _ = read([tap.sent["from_connector"]])
    frames = [f for u in units[2:] for f in (u.frames if isinstance(u, Message) else [u]) if isinstance(f, Frame)]
    assert [frame.subscription for frame in frames] == [Subscription(True, b"t"), Subscription(False, b"t")]


def test_libzmq_push_pull(tmp_path: Path) -> None:
    sizes = [0, 1, 255, 256, 1 << 20]
    with tapped(tmp_path, zmq.PULL, zmq.PUSH) as (pull, push, tap):
        for size in sizes:
            push.send(bytes(size))
        assert [len(pull.recv()) for _ in sizes] == sizes
    _, found, ready = understood(tap.sent["from_connector"])
    assert [len(parts[0]) for parts in found] == sizes
    assert ready.properties["socket-type"] == b"PUSH"


def test_libzmq_dealer_router(tmp_path: Path) -> None:
    with tapped(tmp_path, zmq.ROUTER, zmq.DEALER) as (router, dealer, tap):
        dealer.send_multipart([b"", b"a", b""])
        who, *parts = router.recv_multipart()
        router.send_multipart([who, *parts, b"back"])
        assert dealer.recv_multipart() == [b"", b"a", b"", b"back"]
    assert understood(tap.sent["from_connector"])[1] == [[b"", b"a", b""]]
    assert understood(tap.sent["from_binder"])[1] == [[b"", b"a", b"", b"back"]]


def test_libzmq_heartbeats_are_commands(tmp_path: Path) -> None:
    with tapped(tmp_path, zmq.PULL, zmq.PUSH, heartbeat_ms=5) as (_, _, tap):
        give_up = time.monotonic() + 10
        while b"PONG" not in tap.sent["from_binder"] and time.monotonic() < give_up:
            time.sleep(0.005)
    names, found, _ = understood(tap.sent["from_connector"])
    assert (names[:2], found) == (["READY", "PING"], [])
    assert understood(tap.sent["from_binder"])[0][:2] == ["READY", "PONG"]
