"""Without rules the proxy is invisible: every byte, every end and every delay of the sockets comes across."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from harness.proxy import Trouble
from harness.zmtp import encode_command, encode_frame, encode_greeting
from tests.harness.proxy.legs import LIMIT, PAYLOADS, Link, Raw, both, events, exactly, rule, until


@both
def test_push_pull_is_carried_byte_for_byte(link: Link) -> None:
    link.begin()
    pull, push = link.pair(zmq.PULL, zmq.PUSH)
    for parts in PAYLOADS:
        push.send_multipart(parts)
    assert [pull.recv_multipart() for _ in PAYLOADS] == PAYLOADS
    assert len([s for s in link.seen() if s.direction == "to_binder" and s.kind != "READY"]) == len(PAYLOADS)


@both
def test_pub_sub_is_carried_byte_for_byte(link: Link) -> None:
    link.begin()
    pub, sub = link.pair(zmq.XPUB, zmq.SUB)
    sub.subscribe(b"")
    assert pub.recv() == b"\x01"
    for parts in PAYLOADS:
        pub.send_multipart(parts)
    assert [sub.recv_multipart() for _ in PAYLOADS] == PAYLOADS
    sub.unsubscribe(b"")
    assert pub.recv() == b"\x00"
    assert [s.kind for s in link.seen() if s.direction == "to_binder"] == ["READY", "SUBSCRIBE", "CANCEL"]


def test_dealer_router_is_carried_byte_for_byte_both_ways(link: Link) -> None:
    link.begin()
    router, dealer = link.pair(zmq.ROUTER, zmq.DEALER)
    for parts in PAYLOADS:
        dealer.send_multipart(parts)
    for parts in PAYLOADS:
        who, *got = router.recv_multipart()
        assert got == parts
        router.send_multipart([who, *got])
    assert [dealer.recv_multipart() for _ in PAYLOADS] == PAYLOADS


def test_data_that_looks_like_a_subscription_is_data(link: Link) -> None:
    link.begin()
    pull, push = link.pair(zmq.PULL, zmq.PUSH)
    push.send(b"\x01topic")
    assert pull.recv() == b"\x01topic"
    assert link.seen("SUBSCRIBE") == []


@both
def test_a_late_binder_is_reached_one_reconnect_interval_later(link: Link) -> None:
    link.begin()
    push = link.socket(zmq.PUSH)
    push.connect(link.listen)
    push.send(b"step 1")
    until(lambda: events(link, "refused"), "a refused connection")
    status = link.proxy.status()
    assert status.quiet
    assert [(p.link, p.connector) for p in status.parked] == [("relay", "dp0.rank1")]
    pull = link.socket(zmq.PULL)
    pull.bind(link.up)
    status = link.proxy.status()
    assert not (status.quiet and status.parked)  # a join is on its way
    assert pull.recv() == b"step 1"
    refused, accepted = events(link)
    assert (refused.event, accepted.event) == ("refused", "accepted")
    assert accepted.t_ns - refused.t_ns >= 100_000_000
    assert refused.connection == accepted.connection == 1


def test_a_subscriber_that_came_before_the_binder_needs_no_call_to_join(link: Link) -> None:
    link.begin()
    sub = link.socket(zmq.SUB)
    sub.subscribe(b"")
    sub.connect(link.listen)
    until(lambda: events(link, "refused"), "a refused connection")
    pub = link.socket(zmq.XPUB)
    pub.bind(link.up)
    assert pub.recv() == b"\x01"  # the SUB's own thread has not touched libzmq since
    assert len(link.seen("SUBSCRIBE")) == 1


@both
def test_a_connector_that_gives_up_before_the_bind_is_forgotten(link: Link) -> None:
    link.begin()
    push = link.socket(zmq.PUSH)
    push.connect(link.listen)
    until(lambda: events(link, "refused"), "a refused connection")
    push.close()
    until(lambda: events(link, "closed"), "the connection to close")
    assert link.proxy.status().parked == []


@both
def test_the_death_of_the_binder_is_seen_by_the_connector(link: Link, tmp_path: Path) -> None:
    link.begin(rule(kind="hello"))
    code = """if True:
        import sys, zmq
        sock = zmq.Context().socket(zmq.PUSH)
        sock.bind(sys.argv[1])
        sock.send(b"step 1")
        sock.send(b"hello")
        input()
    """
    pull = link.socket(zmq.PULL)
    monitor = pull.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    with subprocess.Popen([sys.executable, "-c", code, link.up], stdin=subprocess.PIPE) as binder:
        pull.connect(link.listen)
        assert pull.recv() == b"step 1"
        until(lambda: link.seen("hello", "held"), "the hello to be held")
        assert not monitor.poll(0)  # though it connected before the bind
        binder.kill()
        assert monitor.poll(int(LIMIT * 1000))
    assert recv_monitor_message(monitor)["event"] == zmq.EVENT_DISCONNECTED
    until(lambda: events(link, "closed"), "the connection to close")
    assert events(link, "closed")[0].by == "binder"
    assert link.seen("hello", "discarded")
    pull.disable_monitor()


def test_greeting_bytes_are_never_kept_back(link: Link, raw: Raw) -> None:
    for octet in encode_greeting():
        raw.connector.sendall(bytes((octet,)))
        assert exactly(raw.binder, 1) == bytes((octet,))


def test_bytes_sent_before_a_death_arrive_before_the_end(link: Link, raw: Raw) -> None:
    data = encode_greeting() + encode_frame(os.urandom(300_000)) + encode_frame(bytes(100))[:50]
    raw.connector.settimeout(None)
    sender = os.fork()
    if sender == 0:
        raw.connector.sendall(data)
        os._exit(0)
    raw.connector.close()
    assert exactly(raw.binder, len(data)) == data
    assert raw.binder.recv(1) == b""
    assert os.waitpid(sender, 0)[1] == 0
    until(lambda: events(link, "closed"), "the connection to close")
    (closed,) = events(link, "closed")
    assert (closed.by, closed.unsent) == ("connector", 0)
    assert [s.size for s in link.seen("?")][-1] == 50


def test_half_a_close_leaves_the_other_half_open(link: Link, raw: Raw) -> None:
    raw.connector.sendall(encode_greeting())
    raw.connector.shutdown(socket.SHUT_WR)
    assert exactly(raw.binder, 64) == encode_greeting()
    assert raw.binder.recv(1) == b""
    raw.binder.sendall(encode_greeting() + encode_command("READY"))
    assert exactly(raw.connector, 72) == encode_greeting() + encode_command("READY")
    raw.binder.close()
    assert raw.connector.recv(1) == b""
    until(lambda: events(link, "closed"), "the connection to close")


def test_garbage_is_passed_on_and_recorded(link: Link, raw: Raw) -> None:
    data = encode_greeting() + encode_frame(b"step 1") + b"\xf0 not a frame" + encode_frame(b"step 2")
    raw.connector.sendall(data)
    assert exactly(raw.binder, len(data)) == data
    raw.connector.sendall(b"more")
    assert exactly(raw.binder, 4) == b"more"
    (trouble,) = [r for r in link.proxy.ledger().records if isinstance(r, Trouble)]
    assert "not ZMTP at byte 72: expected a flags octet" in trouble.what
    assert [(s.kind, s.fate) for s in link.seen()] == [("step", "passed"), ("?", "passed"), ("?", "passed")]


def test_a_classify_function_that_fails_stops_nothing(link: Link) -> None:
    link.begin()
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    for message in (b"bad", b"odd", b"step 9999999999999999999999", b"step 1"):
        push.send(message)
        assert pull.recv() == message
    assert [s.kind for s in link.seen() if s.kind != "READY"] == ["?", "?", "?", "step"]
    (trouble,) = [r for r in link.proxy.ledger().records if isinstance(r, Trouble)]
    assert trouble.what == "classify failed: RuntimeError: no such kind"


def test_half_a_frame_is_not_quiet(link: Link, raw: Raw) -> None:
    raw.connector.sendall(encode_greeting())
    assert link.proxy.status().quiet
    whole = encode_frame(b"first", more=True) + encode_frame(b"last")
    raw.connector.sendall(whole[:9])
    status = link.proxy.status()
    assert (status.quiet, status.pending_bytes) == (False, 9)
    assert [(p.direction, p.bytes) for p in status.pending] == [("to_binder", 9)]
    raw.connector.sendall(whole[9:])
    status = link.proxy.status()
    assert (status.quiet, status.pending_bytes) == (True, 0)


def test_a_status_sees_what_was_written_before_it_was_asked(link: Link, raw: Raw) -> None:
    raw.connector.sendall(encode_greeting())
    for number in range(1, 200):
        raw.connector.sendall(encode_frame(b"step %d" % number))
        status = link.proxy.status()
        assert status.quiet
        assert len(link.seen("step")) == number
        assert status.records == number + 1  # and the connection


def test_a_reader_that_stops_stops_the_writer(link: Link, raw: Raw) -> None:
    raw.connector.setblocking(False)
    raw.connector.send(encode_greeting())
    frame, sent, rest = encode_frame(bytes(1000)), 64, b""
    while sent < 4 << 20:
        try:
            rest = rest or frame
            taken = raw.connector.send(rest)
        except BlockingIOError:
            status = link.proxy.status()
            with contextlib.suppress(BlockingIOError):
                taken = raw.connector.send(rest)
                sent, rest = sent + taken, rest[taken:]
                continue
            break
        sent, rest = sent + taken, rest[taken:]
    else:
        pytest.fail(f"the writer could send {sent} bytes that nobody reads")
    assert not status.quiet
    assert 256 * 1024 < status.pending_bytes < 512 * 1024
    exactly(raw.binder, sent - status.pending_bytes)
    exactly(raw.binder, status.pending_bytes - len(frame) if rest else status.pending_bytes)
    until(lambda: link.proxy.status().pending_bytes < len(frame), "the buffer to empty")
