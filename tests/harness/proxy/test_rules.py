"""With rules the proxy is exact: the frames they name, in the order that stays, and the ledger says so."""

from __future__ import annotations

import os
import socket

import pytest
import zmq

from harness.proxy import Released, Seen, Trouble
from harness.zmtp import encode_frame, encode_greeting
from tests.harness.proxy.legs import LIMIT, Link, Raw, events, exactly, rule, until


def test_a_held_subscribe_loses_the_first_publish_and_no_later_one(link: Link) -> None:
    link.begin(rule(kind="SUBSCRIBE", until_signal=True))
    pub, sub = link.pair(zmq.PUB, zmq.SUB)
    sub.subscribe(b"")
    until(lambda: link.seen("SUBSCRIBE", "held"), "the SUBSCRIBE to be caught")
    pub.send(b"step 1")
    status = link.quiet()
    assert [(h.rule, h.frames, h.release_at_ns, h.waits_signal) for h in status.held] == [(1, 1, None, True)]
    assert link.seen("step") == []  # the PUB itself threw it away
    link.proxy.signal(1)
    until(lambda: link.seen("SUBSCRIBE", "released"), "the SUBSCRIBE to be released")
    number = 2
    while not sub.poll(1):
        pub.send(b"step %d" % number)
        number += 1
    first = int(sub.recv().split()[1])
    assert first > 1
    released = link.seen("SUBSCRIBE", "released")[0].t_ns
    assert link.seen("step")[0].number == first
    assert all(s.t_ns > released for s in link.seen("step"))
    assert link.counts(1) == (1, 1, 1)


@pytest.mark.parametrize(("nth", "count", "left"), [(1, 1, [2, 3, 4]), (2, 2, [1, 4]), (9, 1, [1, 2, 3, 4])])
def test_drop_takes_exactly_the_nth_frames_of_a_kind(link: Link, nth: int, count: int, left: list[int]) -> None:
    link.begin(rule("drop", nth=nth, count=count, direction="to_connector"))
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    for number in range(1, 5):
        push.send(b"hello %d" % number)
        push.send(b"step %d" % number)
    push.send(b"done")
    got = []
    while (message := pull.recv()) != b"done":
        got.append(message)
    assert [int(m.split()[1]) for m in got if m.startswith(b"step")] == left
    assert len([m for m in got if m.startswith(b"hello")]) == 4
    dropped = link.seen("step", "dropped")
    assert [s.number for s in dropped] == [n for n in range(1, 5) if n not in left]
    assert all(s.rule == 1 and s.nth == s.number for s in dropped)
    assert link.counts(1) == (1, len(dropped), len(dropped))


def test_a_star_rule_counts_messages_of_every_kind_but_no_command(link: Link) -> None:
    link.begin(rule("drop", "*", nth=2), rule("drop", "other", index=2))
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    for message in (b"hello 1", b"step 1", b"hello 2"):
        push.send(message)
    assert [pull.recv(), pull.recv()] == [b"hello 1", b"hello 2"]
    assert (link.counts(1), link.counts(2)) == ((1, 1, 1), (1, 0, 0))


def test_directions_are_counted_apart(link: Link) -> None:
    link.begin(rule("drop", direction="to_binder"))
    a, b = link.pair(zmq.PAIR, zmq.PAIR)
    a.send(b"step 1")
    b.send(b"step 1")
    b.send(b"step 2")
    assert (b.recv(), a.recv()) == (b"step 1", b"step 2")


@pytest.mark.parametrize("how", ["one octet", "four octets", "release", "heal", "time"])
def test_a_hold_keeps_the_order_and_ends(link: Link, how: str) -> None:
    after = 0.05 if how == "time" else 600.0
    link.begin(rule(nth=2, after=after, until_signal=True))
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    sent = [b"step 1", b"step 2", b"hello", b"step 3"]
    for message in sent:
        push.send(message)
    if how == "time":
        until(lambda: link.seen("step", "held"), "the frame to be caught")
    else:
        until(lambda: len(link.seen(fate="held")) == 3, "the frames to be held")
        status = link.quiet()
        (held,) = status.held
        assert (held.frames, held.waits_signal, status.pending_bytes) == (3, True, 0)
        assert held.release_at_ns == status.next_timer_ns
        assert pull.recv() == b"step 1"
        assert not pull.poll(0)
        sent.pop(0)
    if how == "one octet":
        os.write(link.proxy.signal_fd, b"\x01")
    elif how == "four octets":
        link.proxy.signal(1)
    elif how == "release":
        link.proxy.release(1)
    elif how == "heal":
        link.proxy.heal()
    assert [pull.recv() for _ in sent] == sent
    assert link.quiet().held == []
    held_at = {s.nth: s.t_ns for s in link.seen("step", "held")}
    released = link.seen("step", "released")
    assert [s.number for s in released] == [2, 3]
    assert all(s.rule == 1 for s in released)
    if how == "time":
        assert released[0].t_ns - held_at[2] >= after * 1e9
    by = [(r.by, r.holds) for r in link.proxy.ledger().records if isinstance(r, Released)]
    assert by == [({"release": "command", "heal": "heal", "time": "time"}.get(how, "signal"), 1)]


def test_two_holds_in_one_flow_open_in_order(link: Link) -> None:
    link.begin(rule(nth=1), rule(index=2, nth=2))
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    for number in (1, 2, 3):
        push.send(b"step %d" % number)
    until(lambda: len(link.seen(fate="held")) == 3, "three frames held")
    assert [(h.rule, h.frames) for h in link.proxy.status().held] == [(1, 1), (2, 2)]
    link.proxy.release(2)
    assert [(h.rule, h.frames) for h in link.proxy.status().held] == [(1, 3)]
    assert link.seen(fate="released") == []
    link.proxy.release(1)
    assert [pull.recv() for _ in range(3)] == [b"step 1", b"step 2", b"step 3"]


def test_a_hold_in_one_direction_leaves_the_other_free(link: Link) -> None:
    link.begin(rule(direction="to_binder"))
    a, b = link.pair(zmq.PAIR, zmq.PAIR)
    b.send(b"step 1")
    until(lambda: link.seen(fate="held"), "the frame to be held")
    a.send(b"step 1")
    assert b.recv() == b"step 1"


def test_a_signal_before_the_frame_lets_it_pass(link: Link) -> None:
    link.begin(rule(until_signal=True))
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    link.proxy.signal(1)
    link.proxy.status()  # reads what was signalled
    push.send(b"step 1")
    assert pull.recv() == b"step 1"
    (step,) = link.seen("step")
    assert (step.fate, step.rule) == ("passed", 1)
    assert link.counts(1) == (1, 1, 0)


def test_no_rule_acts_after_heal(link: Link) -> None:
    link.begin(rule("drop"))
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    link.proxy.heal()
    push.send(b"step 1")
    assert pull.recv() == b"step 1"
    assert link.counts(1) == (1, 0, 0)


def test_signals_nobody_waits_for_are_recorded(link: Link) -> None:
    link.begin(rule("drop"))
    for data in (b"\x01", b"\x63", b"abc", b""):
        os.write(link.proxy.signal_fd, data)
    link.proxy.status()
    assert len([r for r in link.proxy.ledger().records if isinstance(r, Trouble)]) == 4


def test_what_is_held_at_the_end_is_discarded(link: Link) -> None:
    link.begin(rule())
    push, _ = link.pair(zmq.PUSH, zmq.PULL)
    push.send(b"step 1")
    push.send(b"hello")
    until(lambda: len(link.seen(fate="held")) == 2, "two frames held")
    ended = link.proxy.end()
    fates = [(r.kind, r.fate, r.rule) for r in ended.records if isinstance(r, Seen) and r.fate == "discarded"]
    assert fates == [("step", "discarded", 1), ("hello", "discarded", 1)]
    assert [(c.armed, c.reached, c.fired) for c in ended.rules] == [(1, 1, 1)]


def test_an_end_does_not_wait_for_what_is_held(link: Link) -> None:
    link.begin(rule())
    raw = Raw(link)
    raw.connector.sendall(encode_greeting() + encode_frame(b"hello") + encode_frame(b"step 1") + encode_frame(b"hello"))
    until(lambda: len(link.seen(fate="held")) == 2, "two frames held")
    raw.connector.shutdown(socket.SHUT_WR)
    assert exactly(raw.binder, 71) == encode_greeting() + encode_frame(b"hello")
    assert raw.binder.recv(1) == b""
    assert [s.kind for s in link.seen(fate="discarded")] == ["step", "hello"]
    assert link.proxy.status().held == []
    raw.close()


def test_what_time_lets_go_arrives_although_its_sender_has_ended(link: Link) -> None:
    link.begin(rule(after=0.2))
    raw = Raw(link)
    raw.connector.sendall(encode_greeting() + encode_frame(b"step 1") + encode_frame(b"hello"))
    until(lambda: len(link.seen(fate="held")) == 2, "two frames held")
    raw.connector.shutdown(socket.SHUT_WR)
    assert exactly(raw.binder, 64) == encode_greeting()
    assert exactly(raw.binder, 15) == encode_frame(b"step 1") + encode_frame(b"hello")
    assert raw.binder.recv(1) == b""
    assert link.seen(fate="discarded") == []
    raw.close()


SENT = [b"step 1", b"hello", b"step 2"]
SEEN = [("step", 1, "passed"), ("hello", None, "passed"), ("step", 2, "passed")]


def sent_and_got(link: Link, more: int = 0, sent: list[bytes] = SENT) -> list[bytes]:
    """What a PULL gets of what a PUSH sent through the proxy, and ``more`` messages besides; then nothing comes."""
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    for message in sent:
        push.send(message)
    got = [pull.recv() for _ in range(len(sent) + more)]
    assert link.quiet().pending_bytes == 0
    assert not pull.poll(0)
    return got


def test_without_a_rule_each_message_comes_once_as_it_was_sent(link: Link) -> None:
    link.begin()
    assert sent_and_got(link) == SENT
    assert link.fates("to_connector") == SEEN


@pytest.mark.parametrize(
    ("offset", "arrives"),
    [(None, b"ste\x8f 2"), (0, b"\x8ctep 2"), (-1, b"step \xcd"), (99, b"step \xcd"), (-99, b"\x8ctep 2")],
)
def test_corrupt_flips_one_byte_and_leaves_the_framing_whole(link: Link, offset: int | None, arrives: bytes) -> None:
    link.begin(rule("corrupt", nth=2, offset=offset))
    assert sent_and_got(link) == [b"step 1", b"hello", arrives]
    assert link.fates("to_connector") == [*SEEN[:2], ("step", 2, "corrupted")]
    assert link.counts(1) == (1, 1, 1)


def test_corrupt_changes_the_last_part_and_no_empty_one(link: Link) -> None:
    link.begin(rule("corrupt"), rule("corrupt", index=2, nth=2))
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    big = [b"step 1", bytes(300)]
    push.send_multipart(big)
    push.send_multipart([b"step 2", b""])
    assert pull.recv_multipart() == [b"step 1", bytes(150) + b"\xff" + bytes(149)]
    assert pull.recv_multipart() == [b"step 2", b""]
    assert (link.counts(1), link.counts(2)) == ((1, 1, 1), (1, 1, 0))


def test_duplicate_sends_a_message_twice_in_a_row_and_counts_it_once(link: Link) -> None:
    link.begin(rule("duplicate", count=2))
    assert sent_and_got(link, more=2) == [b"step 1", b"step 1", b"hello", b"step 2", b"step 2"]
    injected = [(s.number, s.nth, s.rule) for s in link.seen("step", "injected")]
    assert injected == [(1, 0, 1), (2, 0, 1)]
    assert link.counts(1) == (1, 2, 2)


def test_reset_loses_the_frame_and_its_connection_and_the_sockets_connect_again(link: Link) -> None:
    link.begin(rule("reset", nth=2))
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    push.send(b"step 1")
    assert pull.recv() == b"step 1"
    with push.get_monitor_socket(zmq.EVENT_DISCONNECTED) as monitor:
        push.send(b"step 2")
        assert monitor.poll(5000), "the connection did not end"
        push.disable_monitor()
    # The socket's own thread has to notice too: the dead connection would get the next message.
    until(
        lambda: not int(push.get(zmq.EVENTS)) & zmq.POLLOUT or len(events(link, "accepted")) == 2,
        "the end to be noticed",
    )
    push.send(b"step 3")
    assert pull.recv() == b"step 3"
    assert link.fates("to_connector") == [("step", 1, "passed"), ("step", 2, "dropped"), ("step", 3, "passed")]
    assert link.counts(1) == (1, 1, 1)


@pytest.mark.parametrize(("data", "arrives"), [(None, b"foreign step 2"), (b"\xc1\x00", b"\xc1\x00")])
def test_foreign_comes_right_before_the_frame(link: Link, data: bytes | None, arrives: bytes) -> None:
    link.begin(rule("foreign", nth=2, data=data))
    assert sent_and_got(link, more=1) == [b"step 1", b"hello", arrives, b"step 2"]
    assert [(s.nth, s.rule) for s in link.seen(fate="injected")] == [(0, 1)]
    assert link.counts(1) == (1, 1, 1)


def test_a_foreign_function_that_fails_stops_nothing(link: Link) -> None:
    link.begin(rule("foreign", "*"))
    assert sent_and_got(link, sent=[b"bad"]) == [b"bad"]
    assert link.counts(1) == (1, 1, 0)
    (trouble, *_) = [r.what for r in link.proxy.ledger().records if isinstance(r, Trouble)]
    assert "no such" in trouble


def test_what_is_injected_stands_in_line_behind_what_is_held(link: Link) -> None:
    link.begin(rule(), rule("duplicate", "hello", index=2))
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    for message in SENT:
        push.send(message)
    until(lambda: len(link.seen(fate="held")) == 4, "four frames held")
    link.proxy.release(1)
    assert [pull.recv() for _ in range(4)] == [b"step 1", b"hello", b"hello", b"step 2"]


def test_rules_for_messages_do_nothing_to_commands(link: Link) -> None:
    rules = [rule(action, "READY", index) for index, action in enumerate(("corrupt", "duplicate", "foreign"), start=1)]
    link.begin(*rules)
    assert sent_and_got(link) == SENT
    assert [link.counts(index)[2] for index in (1, 2, 3)] == [0, 0, 0]


@pytest.mark.parametrize("held", [False, True])
def test_a_held_ready_is_a_peer_that_has_not_joined(link: Link, held: bool) -> None:
    link.begin(*([rule(kind="READY", direction="to_binder")] if held else []))
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    until(lambda: [s for s in link.seen("READY") if s.direction == "to_binder"], "the READY of the connector")
    assert len(link.quiet().held) == held
    push.set(zmq.SNDTIMEO, 100)
    if not held:
        push.send(b"step 1")
        assert pull.recv() == b"step 1"
        return
    with pytest.raises(zmq.Again):
        push.send(b"too early")
    link.proxy.release(1)
    push.set(zmq.SNDTIMEO, int(LIMIT * 1000))
    push.send(b"step 1")
    assert pull.recv() == b"step 1"
    assert link.counts(1) == (1, 1, 1)
