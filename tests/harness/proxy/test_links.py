"""Faults of a link in time and order: late, overtaken, stalled, slow, refused, as the sockets at its ends see them."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from harness.proxy import FrameRule, ProxyError, Released, Trouble
from harness.zmtp import encode_frame, encode_greeting
from tests.harness.proxy.legs import LIMIT, Link, Raw, Sock, both, events, exactly, rule, until

LATE = 0.3
TOLERANCE = 0.002
"""Seconds: clocks of two processes are the same clock, rounding is not."""


def arrivals(pull: Sock, count: int) -> list[tuple[bytes, float]]:
    return [(pull.recv(), time.monotonic()) for _ in range(count)]


# lag


@both
def test_a_link_with_latency_keeps_the_order_and_the_distance_of_frames(link: Link) -> None:
    link.begin(rule("lag", "*", count=100, after=LATE))
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    sent = []
    for number in range(1, 6):
        sent.append(time.monotonic())
        push.send(b"step %d" % number)
        pull.poll(20)  # the next one leaves while this one is on its way
    got = arrivals(pull, 5)
    assert [message for message, _ in got] == [b"step %d" % number for number in range(1, 6)]
    took = [there - here for here, (_, there) in zip(sent, got, strict=True)]
    assert min(took) >= LATE - TOLERANCE
    assert got[-1][1] - sent[0] < 5 * LATE, "latencies do not add up"
    assert link.counts(1) == (1, 5, 5)


def test_without_a_rule_frames_take_no_such_time(link: Link) -> None:
    link.begin()
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    took = []
    for number in range(5):
        began = time.monotonic()
        push.send(b"step %d" % number)
        took.append(arrivals(pull, 1)[0][1] - began)
    assert min(took) < LATE


def test_lag_touches_the_named_frames_and_those_behind_them_only(link: Link) -> None:
    link.begin(rule("lag", nth=2, count=1, after=LATE))
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    for message in (b"step 1", b"step 2", b"hello"):
        push.send(message)
    assert pull.recv() == b"step 1"
    first, second = arrivals(pull, 2)
    assert (first[0], second[0]) == (b"step 2", b"hello")
    assert [(s.kind, s.fate) for s in link.seen() if s.rule == 1] == [
        ("step", "held"),
        ("hello", "held"),
        ("step", "released"),
        ("hello", "released"),
    ]
    assert [(r.by, r.holds) for r in link.proxy.ledger().records if isinstance(r, Released)] == [("time", 1)]


def test_very_many_frames_can_be_on_their_way(link: Link) -> None:
    link.begin(rule("lag", "*", count=10**6, after=600.0))
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    push.set_hwm(0)
    pull.set_hwm(0)
    sent = [b"step %d" % number for number in range(20_000)]
    for message in sent:
        push.send(message)
    until(lambda: link.counts(1)[2] == len(sent), "all frames to be on their way")
    status = link.proxy.status()
    assert [held.frames for held in status.held] == [1] * len(sent)
    assert status.next_timer_ns == status.held[0].release_at_ns
    link.proxy.heal()
    assert [pull.recv() for _ in sent] == sent


def test_what_is_late_arrives_though_its_sender_has_ended(link: Link) -> None:
    link.begin(rule("lag", after=LATE))
    raw = Raw(link)
    began = time.monotonic()
    raw.connector.sendall(encode_greeting() + encode_frame(b"step 1") + encode_frame(b"hello"))
    raw.connector.close()
    data = exactly(raw.binder, 64 + 8 + 7)
    assert data[64:] == encode_frame(b"step 1") + encode_frame(b"hello")
    assert raw.binder.recv(1) == b""
    assert time.monotonic() - began >= LATE - TOLERANCE
    raw.close()


def test_a_late_join_is_late_for_the_publisher(link: Link) -> None:
    link.begin(rule("lag", "SUBSCRIBE", after=LATE, direction="to_binder"))
    pub, sub = link.pair(zmq.XPUB, zmq.SUB)
    began = time.monotonic()
    sub.subscribe(b"")
    assert pub.recv() == b"\x01"
    assert time.monotonic() - began >= LATE - TOLERANCE


# reorder


@pytest.mark.parametrize(("nth", "arrive"), [(1, [2, 1, 3]), (2, [1, 3, 2]), (None, [1, 2, 3])])
def test_a_reordered_frame_comes_behind_the_next_one(link: Link, nth: int | None, arrive: list[int]) -> None:
    link.begin(*([] if nth is None else [rule("reorder", nth=nth)]))
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    for number in (1, 2, 3):
        push.send(b"step %d" % number)
    assert [pull.recv() for _ in range(3)] == [b"step %d" % number for number in arrive]
    if nth is not None:
        assert link.counts(1) == (1, 1, 1)
        assert [(s.number, s.fate) for s in link.seen() if s.rule == 1] == [(nth, "held"), (nth, "released")]


def test_a_reordered_frame_with_none_behind_it_waits_until_faults_are_healed(link: Link) -> None:
    link.begin(rule("reorder"))
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    push.send(b"step 1")
    until(lambda: link.seen("step", "held"), "the frame to be set aside")
    (held,) = link.quiet().held
    assert (held.frames, held.release_at_ns) == (1, None)
    assert not pull.poll(0)
    link.proxy.heal()
    assert pull.recv() == b"step 1"
    assert link.quiet().held == []


def test_a_frame_that_is_held_lets_the_reordered_one_stand_behind_it(link: Link) -> None:
    link.begin(rule("reorder", nth=1), rule("hold", "hello", index=2))
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    push.send(b"step 1")
    push.send(b"hello")
    until(lambda: len(link.seen(fate="held")) == 2, "both frames to be kept")
    assert [(h.rule, h.frames) for h in link.quiet().held] == [(2, 2)]
    link.proxy.release(2)
    assert [pull.recv(), pull.recv()] == [b"hello", b"step 1"]


def test_a_join_can_be_overtaken_by_the_next_one(link: Link) -> None:
    link.begin(rule("reorder", "SUBSCRIBE", direction="to_binder"))
    pub, sub = link.pair(zmq.XPUB, zmq.SUB)
    sub.subscribe(b"a")
    sub.subscribe(b"b")
    assert [pub.recv(), pub.recv()] == [b"\x01b", b"\x01a"]


# stall


@pytest.mark.parametrize("stalled", [False, True])
def test_a_stalled_direction_is_felt_by_its_sender_and_the_other_one_goes_on(link: Link, stalled: bool) -> None:
    link.begin(*([rule("stall", "*", direction="to_binder")] if stalled else []))
    bound, connected = link.socket(zmq.PAIR), link.socket(zmq.PAIR)
    connected.set_hwm(10)
    bound.set_hwm(0)
    bound.bind(link.up)
    connected.connect(link.listen)
    payload = os.urandom(1 << 16)
    bound.send(b"hello")
    assert connected.recv() == b"hello"
    connected.set(zmq.SNDTIMEO, 500 if stalled else int(LIMIT * 1000))
    taken = 0
    with_room = True
    while with_room and taken < 500:
        try:
            connected.send(payload)
            taken += 1
        except zmq.Again:
            with_room = False
    bound.send(b"still")
    assert connected.recv() == b"still"
    assert with_room is not stalled
    if not stalled:
        assert all(bound.recv() == payload for _ in range(taken))
        return
    assert not bound.poll(0)
    assert link.proxy.status().quiet, "a stalled link is at rest"
    read = sum(s.size for s in link.seen() if s.direction == "to_binder")
    assert read < 5 << 16, "what comes behind is not even read"
    link.proxy.heal()
    assert all(bound.recv() == payload for _ in range(taken))
    assert link.counts(1) == (1, 1, 1)


@pytest.mark.parametrize("how", ["time", "signal"])
def test_a_stall_ends_by_time_or_by_an_instant_and_loses_nothing(link: Link, how: str) -> None:
    link.begin(rule("stall", nth=2, after=LATE if how == "time" else None, until_signal=how == "signal"))
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    sent = [b"step %d" % number for number in range(1, 50)]
    began = time.monotonic()
    for message in sent:
        push.send(message)
    assert pull.recv() == b"step 1"
    if how == "signal":
        until(lambda: link.seen(fate="held"), "the stall")
        assert not pull.poll(0)
        link.proxy.signal(1)
    assert [pull.recv() for _ in sent[1:]] == sent[1:]
    if how == "time":
        assert time.monotonic() - began >= LATE - TOLERANCE


def test_a_stalled_link_does_not_show_that_its_sender_has_ended(link: Link) -> None:
    link.begin(rule("stall"))
    raw = Raw(link)
    raw.connector.sendall(encode_greeting() + encode_frame(b"step 1"))
    until(lambda: link.seen(fate="held"), "the stall")
    raw.connector.sendall(encode_frame(b"step 2"))
    raw.connector.close()
    assert exactly(raw.binder, 64) == encode_greeting()
    raw.binder.setblocking(False)
    assert link.proxy.status().quiet
    with pytest.raises(BlockingIOError):
        raw.binder.recv(1)
    raw.binder.settimeout(LIMIT)
    link.proxy.heal()
    assert exactly(raw.binder, 16) == encode_frame(b"step 1") + encode_frame(b"step 2")
    assert raw.binder.recv(1) == b""
    raw.close()


# slow


@pytest.mark.parametrize("rate", [None, 300_000])
def test_a_slow_link_carries_so_many_bytes_a_second(link: Link, rate: int | None) -> None:
    link.begin(*([] if rate is None else [rule("slow", nth=2, rate=rate)]))
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    payload = bytes(100_000)
    for number in (1, 2, 3, 4):
        push.send_multipart([b"step %d" % number, payload])
    assert pull.recv_multipart() == [b"step 1", payload]
    began = time.monotonic()
    got = [pull.recv_multipart() for _ in range(3)]
    took = time.monotonic() - began
    assert got == [[b"step %d" % number, payload] for number in (2, 3, 4)]
    if rate is None:
        assert took < 0.7
    else:
        assert 0.7 < took < 5.0, "300,000 bytes at 300,000 a second"
        assert link.counts(1) == (1, 1, 1)


def test_a_slow_link_pushes_back_and_hurries_once_faults_are_healed(link: Link) -> None:
    link.begin(rule("slow", "*", rate=1000))
    raw = Raw(link)
    raw.connector.sendall(encode_greeting())
    raw.connector.setblocking(False)
    stream = encode_frame(bytes(1000)) * 20_000
    with contextlib.suppress(BlockingIOError):
        while stream:
            stream = stream[raw.connector.send(stream) :]
    assert stream, "the sender could send all"
    assert not link.proxy.status().quiet, "more is to come by itself"
    link.proxy.heal()
    raw.connector.settimeout(LIMIT)
    sent = 20_000 * 1009 - len(stream)
    assert len(exactly(raw.binder, 64 + sent - sent % 1009)) == 64 + sent - sent % 1009
    raw.close()


# refuse


@both
def test_a_link_that_refuses_from_the_start_is_not_there_until_its_time_is_over(link: Link) -> None:
    link.begin(rule("refuse", "", after=2 * LATE))
    bound, connected = link.socket(zmq.PULL), link.socket(zmq.PUSH)
    watch = zmq.EVENT_CONNECTED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_DISCONNECTED
    monitor = connected.get_monitor_socket(watch)
    bound.bind(link.up)
    began = time.monotonic()
    connected.connect(link.listen)
    connected.send(b"step 1")
    assert bound.recv() == b"step 1"
    assert time.monotonic() - began >= 2 * LATE - 2 * TOLERANCE
    seen = [recv_monitor_message(monitor)["event"] for _ in iter(lambda: monitor.poll(0), 0)]
    assert seen[0] == zmq.EVENT_CONNECT_RETRIED, "nobody was there"
    assert seen[-1] == zmq.EVENT_CONNECTED
    assert zmq.EVENT_DISCONNECTED not in seen
    connected.disable_monitor()
    assert link.counts(1) == (1, 1, 1)
    assert [(r.by, r.holds) for r in link.proxy.ledger().records if isinstance(r, Released)] == [("time", 1)]


def test_a_refusal_keeps_what_a_subscriber_has_asked_for(link: Link) -> None:
    link.begin(rule("refuse", ""))
    pub, sub = link.pair(zmq.XPUB, zmq.SUB)
    sub.subscribe(b"")
    assert not pub.poll(int(1000 * LATE))
    (held,) = link.quiet().held
    assert (held.rule, held.frames) == (1, 0)
    link.proxy.release(1)
    assert pub.recv() == b"\x01"  # the SUB's own thread has not touched libzmq since


@both
def test_a_refusal_from_a_frame_on_ends_its_connection_and_lets_none_in(link: Link) -> None:
    link.begin(rule("refuse", nth=2, direction="to_binder"))
    pull, push = link.pair(zmq.PULL, zmq.PUSH)
    monitor = push.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECTED | zmq.EVENT_CONNECT_RETRIED)
    push.send(b"step 1")
    assert pull.recv() == b"step 1"
    push.send(b"step 2")
    tried = [recv_monitor_message(monitor)["event"] for _ in range(5)]
    first = tried.index(zmq.EVENT_DISCONNECTED)
    assert set(tried[first + 1 :]) == {zmq.EVENT_CONNECT_RETRIED}
    assert len(events(link, "accepted")) == 1
    link.proxy.heal()
    until(lambda: len(events(link, "accepted")) == 2, "a second connection")
    push.disable_monitor()
    push.send(b"step 3")
    assert pull.recv() == b"step 3"
    assert [(s.number, s.fate) for s in link.seen("step")] == [(1, "passed"), (2, "dropped"), (3, "passed")]


def test_a_refused_path_that_somebody_else_has_taken_is_told(link: Link) -> None:
    link.begin(rule("refuse", ""))
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(link.listen.removeprefix("ipc://"))
        link.proxy.heal()
        (trouble,) = [r.what for r in link.proxy.ledger().records if isinstance(r, Trouble)]
    assert "cannot listen at" in trouble
    assert "again" in trouble


# commands


@pytest.mark.parametrize("action", [None, "hold", "lag", "stall", "drop"])
def test_a_peer_whose_ready_does_not_come_has_not_joined(link: Link, action: str | None) -> None:
    link.begin(*([] if action is None else [rule(action, "READY", direction="to_binder", after=600.0)]))
    pull, push = link.pair(zmq.PULL, zmq.PUSH)
    monitor = pull.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    if action != "drop":  # a message without a READY before it would end the connection
        push.send(b"step 1")
    if action is None:
        assert monitor.poll(int(LIMIT * 1000))
        assert pull.recv() == b"step 1"
    else:
        until(lambda: link.seen("READY", "dropped" if action == "drop" else "held"), "the READY to be caught")
        assert not monitor.poll(int(1000 * LATE))
        assert not pull.poll(0)
        assert link.counts(1) == (1, 1, 1)
    if action not in (None, "drop"):
        link.proxy.release(1)
        assert monitor.poll(int(LIMIT * 1000))
        assert pull.recv() == b"step 1"
    pull.disable_monitor()


def test_a_ready_that_is_overtaken_breaks_the_handshake(link: Link) -> None:
    link.begin(rule("reorder", "READY", direction="to_binder"))
    pull, push = link.pair(zmq.PULL, zmq.PUSH)
    with pull.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL) as monitor:
        push.send(b"step 1")
        assert monitor.poll(int(LIMIT * 1000))
        pull.disable_monitor()
    assert [(s.kind, s.fate) for s in link.seen() if s.direction == "to_binder"][:3] == [
        ("READY", "held"),
        ("step", "passed"),
        ("READY", "released"),
    ]


@pytest.mark.parametrize("lost", [False, True])
def test_heartbeats_that_are_not_answered_end_the_connection(link: Link, lost: bool) -> None:
    link.begin(*([rule("drop", "PONG", nth=3, count=10**6)] if lost else []))
    pull, push = link.socket(zmq.PULL), link.socket(zmq.PUSH)
    push.set(zmq.HEARTBEAT_IVL, 10)
    push.set(zmq.HEARTBEAT_TIMEOUT, 300 if lost else int(LIMIT * 1000))
    pull.bind(link.up)
    with push.get_monitor_socket(zmq.EVENT_DISCONNECTED) as monitor:
        push.connect(link.listen)
        until(lambda: len(link.seen("PONG")) > 5, "heartbeats")
        assert bool(monitor.poll(int(LIMIT * 1000) if lost else 0)) is lost
        push.disable_monitor()


# which frames


def test_a_match_lets_only_frames_with_these_bytes_count(link: Link) -> None:
    link.begin(rule("drop", match=b"\x01r1", nth=2))
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    sent = [[b"step", b"\x01r0"], [b"step", b"\x01r1"], [b"step", b"\x01r0"], [b"step", b"a\x01r1b"], [b"step", b"r1"]]
    for parts in sent:
        push.send_multipart(parts)
    assert [pull.recv_multipart() for _ in range(4)] == [*sent[:3], sent[4]]
    assert link.counts(1) == (1, 1, 1)


def test_a_match_on_a_join_is_one_of_its_topic(link: Link) -> None:
    link.begin(rule("drop", "SUBSCRIBE", match=b"b"))
    pub, sub = link.pair(zmq.XPUB, zmq.SUB)
    for topic in (b"a", b"b", b"c"):
        sub.subscribe(topic)
    assert [pub.recv(), pub.recv()] == [b"\x01a", b"\x01c"]


def test_a_rule_for_one_connection_leaves_the_others(link: Link) -> None:
    link.begin(rule("drop", connection=2))
    pull = link.socket(zmq.PULL)
    pull.bind(link.up)
    for number in (1, 2, 3):
        push = link.socket(zmq.PUSH)
        push.connect(link.listen)
        push.send(b"step %d" % number)
        until(lambda number=number: len(link.seen("step")) == number, "the frame to come")  # type: ignore[misc]
    assert [pull.recv(), pull.recv()] == [b"step 1", b"step 3"]
    assert [(s.connection, s.fate) for s in link.seen("step")] == [(1, "passed"), (2, "dropped"), (3, "passed")]


@pytest.mark.parametrize(("keep", "arrives"), [(0, b""), (2, b"ab"), (5, b"abcde"), (9, b"abcde")])
def test_truncate_leaves_the_beginning_of_the_last_part_and_the_framing_whole(
    link: Link, keep: int, arrives: bytes
) -> None:
    link.begin(rule("truncate", keep=keep), rule("truncate", "READY", index=2))
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    push.send_multipart([b"step 1", b"abcde"])
    push.send(b"hello")
    assert pull.recv_multipart() == [b"step 1", arrives]
    assert pull.recv() == b"hello"
    assert link.counts(1) == (1, 1, arrives != b"abcde")
    assert link.counts(2)[2] == 0
    assert [s.fate for s in link.seen("step")] == ["truncated" if arrives != b"abcde" else "passed"]


# while a run goes on


def test_a_rule_can_be_added_and_withdrawn_while_frames_go(link: Link) -> None:
    link.begin()
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    numbers = itertools.count(1)

    def send(count: int) -> list[int]:
        chosen = list(itertools.islice(numbers, count))
        for number in chosen:
            push.send(b"step %d" % number)
        return chosen

    def got(count: int) -> list[int]:
        return [int(pull.recv().split()[1]) for _ in range(count)]

    assert send(3) == got(3)
    link.proxy.add(rule("drop", nth=2, count=10, index=7))
    first = send(4)
    assert got(1) == first[:1], "it counts from the moment it was added"
    until(lambda: link.counts(7) == (1, 3, 3), "three frames dropped")
    link.proxy.withdraw(7)
    assert send(3) == got(3)
    assert link.counts(7) == (1, 3, 3)
    ended = link.proxy.end()
    assert [(c.index, c.armed, c.reached, c.fired) for c in ended.rules] == [(7, 1, 3, 3)]


def test_what_was_sent_before_a_rule_was_added_is_not_its_own(link: Link) -> None:
    link.begin()
    raw = Raw(link)
    raw.connector.sendall(encode_greeting() + encode_frame(b"step 1"))
    link.proxy.add(rule("drop", index=3))
    raw.connector.sendall(encode_frame(b"step 2") + encode_frame(b"step 3"))
    assert exactly(raw.binder, 80) == encode_greeting() + encode_frame(b"step 1") + encode_frame(b"step 3")
    raw.close()


@pytest.mark.parametrize("action", ["hold", "stall", "reorder", "lag"])
def test_a_rule_that_is_withdrawn_lets_go_what_it_holds(link: Link, action: str) -> None:
    link.begin()
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    link.proxy.add(rule(action, after=600.0))
    push.send(b"step 1")
    until(lambda: link.seen("step", "held"), "the frame to be held")
    assert not pull.poll(0)
    link.proxy.withdraw(1)
    assert pull.recv() == b"step 1"
    assert [(r.by, r.holds) for r in link.proxy.ledger().records if isinstance(r, Released)] == [("withdraw", 1)]
    push.send(b"step 2")
    assert pull.recv() == b"step 2"


@pytest.mark.parametrize("ends", ["withdraw", "release"])
def test_a_slow_link_is_quick_again_once_its_rule_is_withdrawn_or_released(link: Link, ends: str) -> None:
    link.begin()
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    link.proxy.add(rule("slow", rate=10))
    push.send_multipart([b"step 1", bytes(10_000)])
    assert not pull.poll(int(1000 * LATE))
    getattr(link.proxy, ends)(1)
    assert pull.recv_multipart() == [b"step 1", bytes(10_000)]


def test_a_refusal_can_begin_and_end_while_a_run_goes_on(link: Link) -> None:
    link.begin()
    pull, push = link.pair(zmq.PULL, zmq.PUSH)
    push.send(b"step 1")
    assert pull.recv() == b"step 1"
    link.proxy.add(rule("refuse", ""))
    push.send(b"step 2")
    assert pull.recv() == b"step 2", "who is connected stays so"
    late = link.socket(zmq.PUSH)
    late.connect(link.listen)
    late.send(b"step 3")
    assert not pull.poll(int(1000 * LATE))
    link.proxy.withdraw(1)
    assert pull.recv() == b"step 3"


def test_a_rule_that_is_added_after_faults_were_healed_acts(link: Link) -> None:
    link.begin(rule("drop", count=100))
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    link.proxy.heal()
    link.proxy.add(rule("drop", index=2))
    for number in (1, 2):
        push.send(b"step %d" % number)
    assert pull.recv() == b"step 2"
    assert (link.counts(1), link.counts(2)) == ((1, 0, 0), (1, 1, 1))


def test_wrong_requests_while_a_run_goes_on_are_refused_and_change_nothing(link: Link) -> None:
    link.begin(rule("drop", "hello"))
    for wrong, words in (
        (rule("drop"), "rule 1: the index is used twice"),
        (rule("lag", index=2), "rule 2: a lag needs after"),
        (rule("slow", index=2), "rule 2: a slow needs rate"),
        (rule("drop", index=2, match=b""), "rule 2: match is empty"),
        (rule("drop", index=2, connection=0), "rule 2: connection must be 1 or more, not 0"),
        (FrameRule(2, "drop", "relay", "dp0.rank9", "step"), "rule 2: no leg relay of dp0.rank9; there is: relay of"),
    ):
        with pytest.raises(ProxyError, match=words):
            link.proxy.add(wrong)
    with pytest.raises(ProxyError, match="no rule 2 to withdraw; there is: 1"):
        link.proxy.withdraw(2)
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    for message in (b"hello", b"step 1"):
        push.send(message)
    assert pull.recv() == b"step 1"
