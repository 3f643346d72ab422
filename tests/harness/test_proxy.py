"""The proxy: invisible without rules, exact with them, quiet only when nothing moves, and gone when its parent is."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from harness.proxy import Connected, FrameRule, Leg, Proxy, ProxyError, Record, Released, Seen, Status, Trouble
from harness.zmtp import encode_command, encode_frame, encode_greeting

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 10.0  # seconds to wait for what must come
Sock = zmq.Socket[bytes]

CLASSIFY = """
from harness.proxy.records import Kind

def classify(link, direction, frames):
    word, _, number = frames[0].partition(b" ")
    if word == b"bad":
        raise RuntimeError("no such kind")
    if word == b"odd":
        return Kind(b"bytes")
    return Kind(word.decode() if word.isalpha() else "?", int(number) if number.isdigit() else None)
"""


def until(true: Callable[[], object], what: str) -> None:
    give_up = time.monotonic() + LIMIT
    while not true():
        if time.monotonic() > give_up:
            pytest.fail(f"waited {LIMIT} s for {what}")
        time.sleep(0.001)


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    folder = tmp_path_factory.mktemp("classify")
    (folder / "relay_kinds.py").write_text(CLASSIFY)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        with Proxy() as started:
            yield started


class World:
    """One leg through the proxy, sockets at both ends, and what the ledger says of them."""

    def __init__(self, proxy: Proxy, folder: Path, tcp: bool = False) -> None:
        self.proxy = proxy
        self.up = f"ipc://{folder}/up"
        self.listen = "tcp://127.0.0.1:0" if tcp else f"ipc://{folder}/listen"
        self.context: zmq.Context[Sock] = zmq.Context()
        self._tcp = tcp

    def begin(self, *rules: FrameRule) -> None:
        if self._tcp and self.up.startswith("ipc"):
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.up = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        leg = Leg("relay", "dp0.rank1", "dp0.rank0", self.listen, self.up)
        (self.listen,) = self.proxy.begin([leg], rules, "relay_kinds:classify")

    def socket(self, kind: int) -> Sock:
        made = self.context.socket(kind)
        made.set(zmq.RCVTIMEO, int(LIMIT * 1000))
        made.set(zmq.SNDTIMEO, int(LIMIT * 1000))
        made.set(zmq.LINGER, 0)
        return made

    def pair(self, binder: int, connector: int) -> tuple[Sock, Sock]:
        bound, connected = self.socket(binder), self.socket(connector)
        bound.bind(self.up)
        connected.connect(self.listen)
        return bound, connected

    def seen(self, kind: str | None = None, fate: str | None = None) -> list[Seen]:
        records = self.proxy.ledger().records
        return [r for r in records if isinstance(r, Seen) and kind in (None, r.kind) and fate in (None, r.fate)]

    def fates(self, direction: str) -> list[tuple[str, int | None, str]]:
        """Kind, number and fate of every message that went in `direction`."""
        return [(s.kind, s.number, s.fate) for s in self.seen() if s.direction == direction and not s.kind.isupper()]

    def quiet(self) -> Status:
        until(lambda: self.proxy.status().quiet, "a quiet proxy")
        return self.proxy.status()

    def counts(self, index: int) -> tuple[int, int, int]:
        (count,) = [c for c in self.proxy.status().rules if c.index == index]
        return count.armed, count.reached, count.fired


@pytest.fixture(params=[False])
def world(proxy: Proxy, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(proxy, tmp_path, request.param)
    yield made
    with contextlib.suppress(ProxyError):
        proxy.end()
    made.context.destroy(linger=0)


def rule(action: str = "hold", kind: str = "step", index: int = 1, **settings: object) -> FrameRule:
    return FrameRule(index, action, "relay", "dp0.rank1", kind, **settings)  # type: ignore[arg-type]


both = pytest.mark.parametrize("world", [False, True], ids=["ipc", "tcp"], indirect=True)
PAYLOADS = [
    [b""],
    [b"a", b"", bytes(255), bytes(256)],
    [os.urandom(1 << 20), b"end"],
    *[[b"%d" % n] for n in range(500)],
]


@both
def test_push_pull_is_carried_byte_for_byte(world: World) -> None:
    world.begin()
    pull, push = world.pair(zmq.PULL, zmq.PUSH)
    for parts in PAYLOADS:
        push.send_multipart(parts)
    assert [pull.recv_multipart() for _ in PAYLOADS] == PAYLOADS
    assert len([s for s in world.seen() if s.direction == "to_binder" and s.kind != "READY"]) == len(PAYLOADS)


@both
def test_pub_sub_is_carried_byte_for_byte(world: World) -> None:
    world.begin()
    pub, sub = world.pair(zmq.XPUB, zmq.SUB)
    sub.subscribe(b"")
    assert pub.recv() == b"\x01"
    for parts in PAYLOADS:
        pub.send_multipart(parts)
    assert [sub.recv_multipart() for _ in PAYLOADS] == PAYLOADS
    sub.unsubscribe(b"")
    assert pub.recv() == b"\x00"
    assert [s.kind for s in world.seen() if s.direction == "to_binder"] == ["READY", "SUBSCRIBE", "CANCEL"]


def test_dealer_router_is_carried_byte_for_byte_both_ways(world: World) -> None:
    world.begin()
    router, dealer = world.pair(zmq.ROUTER, zmq.DEALER)
    for parts in PAYLOADS:
        dealer.send_multipart(parts)
    for parts in PAYLOADS:
        who, *got = router.recv_multipart()
        assert got == parts
        router.send_multipart([who, *got])
    assert [dealer.recv_multipart() for _ in PAYLOADS] == PAYLOADS


def test_data_that_looks_like_a_subscription_is_data(world: World) -> None:
    world.begin()
    pull, push = world.pair(zmq.PULL, zmq.PUSH)
    push.send(b"\x01topic")
    assert pull.recv() == b"\x01topic"
    assert world.seen("SUBSCRIBE") == []


def test_a_held_subscribe_loses_the_first_publish_and_no_later_one(world: World) -> None:
    world.begin(rule(kind="SUBSCRIBE", until_signal=True))
    pub, sub = world.pair(zmq.PUB, zmq.SUB)
    sub.subscribe(b"")
    until(lambda: world.seen("SUBSCRIBE", "held"), "the SUBSCRIBE to be caught")
    pub.send(b"step 1")
    status = world.quiet()
    assert [(h.rule, h.frames, h.release_at_ns, h.waits_signal) for h in status.held] == [(1, 1, None, True)]
    assert world.seen("step") == []  # the PUB itself threw it away
    world.proxy.signal(1)
    until(lambda: world.seen("SUBSCRIBE", "released"), "the SUBSCRIBE to be released")
    number = 2
    while not sub.poll(1):
        pub.send(b"step %d" % number)
        number += 1
    first = int(sub.recv().split()[1])
    assert first > 1
    released = world.seen("SUBSCRIBE", "released")[0].t_ns
    assert world.seen("step")[0].number == first
    assert all(s.t_ns > released for s in world.seen("step"))
    assert world.counts(1) == (1, 1, 1)


@pytest.mark.parametrize(("nth", "count", "left"), [(1, 1, [2, 3, 4]), (2, 2, [1, 4]), (9, 1, [1, 2, 3, 4])])
def test_drop_takes_exactly_the_nth_frames_of_a_kind(world: World, nth: int, count: int, left: list[int]) -> None:
    world.begin(rule("drop", nth=nth, count=count, direction="to_connector"))
    push, pull = world.pair(zmq.PUSH, zmq.PULL)
    for number in range(1, 5):
        push.send(b"hello %d" % number)
        push.send(b"step %d" % number)
    push.send(b"done")
    got = []
    while (message := pull.recv()) != b"done":
        got.append(message)
    assert [int(m.split()[1]) for m in got if m.startswith(b"step")] == left
    assert len([m for m in got if m.startswith(b"hello")]) == 4
    dropped = world.seen("step", "dropped")
    assert [s.number for s in dropped] == [n for n in range(1, 5) if n not in left]
    assert all(s.rule == 1 and s.nth == s.number for s in dropped)
    assert world.counts(1) == (1, len(dropped), len(dropped))


def test_a_star_rule_counts_messages_of_every_kind_but_no_command(world: World) -> None:
    world.begin(rule("drop", "*", nth=2), rule("drop", "other", index=2))
    push, pull = world.pair(zmq.PUSH, zmq.PULL)
    for message in (b"hello 1", b"step 1", b"hello 2"):
        push.send(message)
    assert [pull.recv(), pull.recv()] == [b"hello 1", b"hello 2"]
    assert (world.counts(1), world.counts(2)) == ((1, 1, 1), (1, 0, 0))


def test_directions_are_counted_apart(world: World) -> None:
    world.begin(rule("drop", direction="to_binder"))
    a, b = world.pair(zmq.PAIR, zmq.PAIR)
    a.send(b"step 1")
    b.send(b"step 1")
    b.send(b"step 2")
    assert (b.recv(), a.recv()) == (b"step 1", b"step 2")


@pytest.mark.parametrize("how", ["one octet", "four octets", "release", "heal", "time"])
def test_a_hold_keeps_the_order_and_ends(world: World, how: str) -> None:
    after = 0.05 if how == "time" else 600.0
    world.begin(rule(nth=2, after=after, until_signal=True))
    push, pull = world.pair(zmq.PUSH, zmq.PULL)
    sent = [b"step 1", b"step 2", b"hello", b"step 3"]
    for message in sent:
        push.send(message)
    if how == "time":
        until(lambda: world.seen("step", "held"), "the frame to be caught")
    else:
        until(lambda: len(world.seen(fate="held")) == 3, "the frames to be held")
        status = world.quiet()
        (held,) = status.held
        assert (held.frames, held.waits_signal, status.pending_bytes) == (3, True, 0)
        assert held.release_at_ns == status.next_timer_ns
        assert pull.recv() == b"step 1"
        assert not pull.poll(0)
        sent.pop(0)
    if how == "one octet":
        os.write(world.proxy.signal_fd, b"\x01")
    elif how == "four octets":
        world.proxy.signal(1)
    elif how == "release":
        world.proxy.release(1)
    elif how == "heal":
        world.proxy.heal()
    assert [pull.recv() for _ in sent] == sent
    assert world.quiet().held == []
    held_at = {s.nth: s.t_ns for s in world.seen("step", "held")}
    released = world.seen("step", "released")
    assert [s.number for s in released] == [2, 3]
    assert all(s.rule == 1 for s in released)
    if how == "time":
        assert released[0].t_ns - held_at[2] >= after * 1e9
    by = [(r.by, r.holds) for r in world.proxy.ledger().records if isinstance(r, Released)]
    assert by == [({"release": "command", "heal": "heal", "time": "time"}.get(how, "signal"), 1)]


def test_two_holds_in_one_flow_open_in_order(world: World) -> None:
    world.begin(rule(nth=1), rule(index=2, nth=2))
    push, pull = world.pair(zmq.PUSH, zmq.PULL)
    for number in (1, 2, 3):
        push.send(b"step %d" % number)
    until(lambda: len(world.seen(fate="held")) == 3, "three frames held")
    assert [(h.rule, h.frames) for h in world.proxy.status().held] == [(1, 1), (2, 2)]
    world.proxy.release(2)
    assert [(h.rule, h.frames) for h in world.proxy.status().held] == [(1, 3)]
    assert world.seen(fate="released") == []
    world.proxy.release(1)
    assert [pull.recv() for _ in range(3)] == [b"step 1", b"step 2", b"step 3"]


def test_a_hold_in_one_direction_leaves_the_other_free(world: World) -> None:
    world.begin(rule(direction="to_binder"))
    a, b = world.pair(zmq.PAIR, zmq.PAIR)
    b.send(b"step 1")
    until(lambda: world.seen(fate="held"), "the frame to be held")
    a.send(b"step 1")
    assert b.recv() == b"step 1"


def test_a_signal_before_the_frame_lets_it_pass(world: World) -> None:
    world.begin(rule(until_signal=True))
    push, pull = world.pair(zmq.PUSH, zmq.PULL)
    world.proxy.signal(1)
    world.proxy.status()  # reads what was signalled
    push.send(b"step 1")
    assert pull.recv() == b"step 1"
    (step,) = world.seen("step")
    assert (step.fate, step.rule) == ("passed", 1)
    assert world.counts(1) == (1, 1, 0)


def test_no_rule_acts_after_heal(world: World) -> None:
    world.begin(rule("drop"))
    push, pull = world.pair(zmq.PUSH, zmq.PULL)
    world.proxy.heal()
    push.send(b"step 1")
    assert pull.recv() == b"step 1"
    assert world.counts(1) == (1, 0, 0)


def test_signals_nobody_waits_for_are_recorded(world: World) -> None:
    world.begin(rule("drop"))
    for data in (b"\x01", b"\x63", b"abc", b""):
        os.write(world.proxy.signal_fd, data)
    world.proxy.status()
    assert len([r for r in world.proxy.ledger().records if isinstance(r, Trouble)]) == 4


def test_what_is_held_at_the_end_is_discarded(world: World) -> None:
    world.begin(rule())
    push, _ = world.pair(zmq.PUSH, zmq.PULL)
    push.send(b"step 1")
    push.send(b"hello")
    until(lambda: len(world.seen(fate="held")) == 2, "two frames held")
    ended = world.proxy.end()
    fates = [(r.kind, r.fate, r.rule) for r in ended.records if isinstance(r, Seen) and r.fate == "discarded"]
    assert fates == [("step", "discarded", 1), ("hello", "discarded", 1)]
    assert [(c.armed, c.reached, c.fired) for c in ended.rules] == [(1, 1, 1)]


@both
def test_a_late_binder_is_reached_one_reconnect_interval_later(world: World) -> None:
    world.begin()
    push = world.socket(zmq.PUSH)
    push.connect(world.listen)
    push.send(b"step 1")
    until(lambda: events(world, "refused"), "a refused connection")
    status = world.proxy.status()
    assert status.quiet
    assert [(p.link, p.connector) for p in status.parked] == [("relay", "dp0.rank1")]
    pull = world.socket(zmq.PULL)
    pull.bind(world.up)
    status = world.proxy.status()
    assert not (status.quiet and status.parked)  # a join is on its way
    assert pull.recv() == b"step 1"
    refused, accepted = events(world)
    assert (refused.event, accepted.event) == ("refused", "accepted")
    assert accepted.t_ns - refused.t_ns >= 100_000_000
    assert refused.connection == accepted.connection == 1


def test_a_subscriber_that_came_before_the_binder_needs_no_call_to_join(world: World) -> None:
    world.begin()
    sub = world.socket(zmq.SUB)
    sub.subscribe(b"")
    sub.connect(world.listen)
    until(lambda: events(world, "refused"), "a refused connection")
    pub = world.socket(zmq.XPUB)
    pub.bind(world.up)
    assert pub.recv() == b"\x01"  # the SUB's own thread has not touched libzmq since
    assert len(world.seen("SUBSCRIBE")) == 1


@both
def test_a_connector_that_gives_up_before_the_bind_is_forgotten(world: World) -> None:
    world.begin()
    push = world.socket(zmq.PUSH)
    push.connect(world.listen)
    until(lambda: events(world, "refused"), "a refused connection")
    push.close()
    until(lambda: events(world, "closed"), "the connection to close")
    assert world.proxy.status().parked == []


def events(world: World, event: str | None = None) -> list[Connected]:
    return [r for r in world.proxy.ledger().records if isinstance(r, Connected) and event in (None, r.event)]


@both
def test_the_death_of_the_binder_is_seen_by_the_connector(world: World, tmp_path: Path) -> None:
    world.begin(rule(kind="hello"))
    code = """if True:
        import sys, zmq
        sock = zmq.Context().socket(zmq.PUSH)
        sock.bind(sys.argv[1])
        sock.send(b"step 1")
        sock.send(b"hello")
        input()
    """
    pull = world.socket(zmq.PULL)
    monitor = pull.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    with subprocess.Popen([sys.executable, "-c", code, world.up], stdin=subprocess.PIPE) as binder:
        pull.connect(world.listen)
        assert pull.recv() == b"step 1"
        until(lambda: world.seen("hello", "held"), "the hello to be held")
        assert not monitor.poll(0)  # though it connected before the bind
        binder.kill()
        assert monitor.poll(int(LIMIT * 1000))
    assert recv_monitor_message(monitor)["event"] == zmq.EVENT_DISCONNECTED
    until(lambda: events(world, "closed"), "the connection to close")
    assert events(world, "closed")[0].by == "binder"
    assert world.seen("hello", "discarded")
    pull.disable_monitor()


class Raw:
    """Plain unix sockets at both ends of the leg."""

    def __init__(self, world: World) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(world.up.removeprefix("ipc://"))
        self.listener.listen()
        self.connector = socket.socket(socket.AF_UNIX)
        self.connector.connect(world.listen.removeprefix("ipc://"))
        self.binder, _ = self.listener.accept()
        for sock in (self.connector, self.binder):
            sock.settimeout(LIMIT)

    def close(self) -> None:
        for sock in (self.listener, self.connector, self.binder):
            sock.close()


@pytest.fixture
def raw(world: World) -> Iterator[Raw]:
    world.begin()
    made = Raw(world)
    yield made
    made.close()


def exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = sock.recv(size - len(data))
        assert chunk, "ended early"
        data += chunk
    return data


def test_greeting_bytes_are_never_kept_back(world: World, raw: Raw) -> None:
    for octet in encode_greeting():
        raw.connector.sendall(bytes((octet,)))
        assert exactly(raw.binder, 1) == bytes((octet,))


def test_bytes_sent_before_a_death_arrive_before_the_end(world: World, raw: Raw) -> None:
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
    until(lambda: events(world, "closed"), "the connection to close")
    (closed,) = events(world, "closed")
    assert (closed.by, closed.unsent) == ("connector", 0)
    assert [s.size for s in world.seen("?")][-1] == 50


def test_half_a_close_leaves_the_other_half_open(world: World, raw: Raw) -> None:
    raw.connector.sendall(encode_greeting())
    raw.connector.shutdown(socket.SHUT_WR)
    assert exactly(raw.binder, 64) == encode_greeting()
    assert raw.binder.recv(1) == b""
    raw.binder.sendall(encode_greeting() + encode_command("READY"))
    assert exactly(raw.connector, 72) == encode_greeting() + encode_command("READY")
    raw.binder.close()
    assert raw.connector.recv(1) == b""
    until(lambda: events(world, "closed"), "the connection to close")


def test_an_end_does_not_wait_for_what_is_held(world: World) -> None:
    world.begin(rule())
    raw = Raw(world)
    raw.connector.sendall(encode_greeting() + encode_frame(b"hello") + encode_frame(b"step 1") + encode_frame(b"hello"))
    until(lambda: len(world.seen(fate="held")) == 2, "two frames held")
    raw.connector.shutdown(socket.SHUT_WR)
    assert exactly(raw.binder, 71) == encode_greeting() + encode_frame(b"hello")
    assert raw.binder.recv(1) == b""
    assert [s.kind for s in world.seen(fate="discarded")] == ["step", "hello"]
    assert world.proxy.status().held == []
    raw.close()


def test_garbage_is_passed_on_and_recorded(world: World, raw: Raw) -> None:
    data = encode_greeting() + encode_frame(b"step 1") + b"\xf0 not a frame" + encode_frame(b"step 2")
    raw.connector.sendall(data)
    assert exactly(raw.binder, len(data)) == data
    raw.connector.sendall(b"more")
    assert exactly(raw.binder, 4) == b"more"
    (trouble,) = [r for r in world.proxy.ledger().records if isinstance(r, Trouble)]
    assert "not ZMTP at byte 72: expected a flags octet" in trouble.what
    assert [(s.kind, s.fate) for s in world.seen()] == [("step", "passed"), ("?", "passed"), ("?", "passed")]


def test_a_classify_function_that_fails_stops_nothing(world: World) -> None:
    world.begin()
    push, pull = world.pair(zmq.PUSH, zmq.PULL)
    for message in (b"bad", b"odd", b"step 9999999999999999999999", b"step 1"):
        push.send(message)
        assert pull.recv() == message
    assert [s.kind for s in world.seen() if s.kind != "READY"] == ["?", "?", "?", "step"]
    (trouble,) = [r for r in world.proxy.ledger().records if isinstance(r, Trouble)]
    assert trouble.what == "classify failed: RuntimeError: no such kind"


def test_half_a_frame_is_not_quiet(world: World, raw: Raw) -> None:
    raw.connector.sendall(encode_greeting())
    assert world.proxy.status().quiet
    whole = encode_frame(b"first", more=True) + encode_frame(b"last")
    raw.connector.sendall(whole[:9])
    status = world.proxy.status()
    assert (status.quiet, status.pending_bytes) == (False, 9)
    assert [(p.direction, p.bytes) for p in status.pending] == [("to_binder", 9)]
    raw.connector.sendall(whole[9:])
    status = world.proxy.status()
    assert (status.quiet, status.pending_bytes) == (True, 0)


def test_a_status_sees_what_was_written_before_it_was_asked(world: World, raw: Raw) -> None:
    raw.connector.sendall(encode_greeting())
    for number in range(1, 200):
        raw.connector.sendall(encode_frame(b"step %d" % number))
        status = world.proxy.status()
        assert status.quiet
        assert len(world.seen("step")) == number
        assert status.records == number + 1  # and the connection


def test_a_reader_that_stops_stops_the_writer(world: World, raw: Raw) -> None:
    raw.connector.setblocking(False)
    raw.connector.send(encode_greeting())
    frame, sent, rest = encode_frame(bytes(1000)), 64, b""
    while sent < 4 << 20:
        try:
            rest = rest or frame
            taken = raw.connector.send(rest)
        except BlockingIOError:
            status = world.proxy.status()
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
    until(lambda: world.proxy.status().pending_bytes < len(frame), "the buffer to empty")


def descriptors(pid: int) -> list[str]:
    return sorted(os.readlink(f"/proc/{pid}/fd/{fd}").split(":")[0] for fd in os.listdir(f"/proc/{pid}/fd"))


def test_fifty_runs_leave_no_descriptor_and_no_path(proxy: Proxy, tmp_path: Path) -> None:
    before = None
    context: zmq.Context[Sock] = zmq.Context()
    for number in range(50):
        legs = [Leg("relay", f"dp0.rank{n}", "dp0.rank0", f"{tmp_path}/l{n}", f"{tmp_path}/up{number}") for n in (1, 2)]
        proxy.begin(legs, [FrameRule(1, "hold", "relay", "dp0.rank1", "*")])
        with context.socket(zmq.PULL) as pull, context.socket(zmq.PUSH) as held, context.socket(zmq.PUSH) as push:
            pull.set(zmq.RCVTIMEO, int(LIMIT * 1000))
            pull.bind(f"ipc://{tmp_path}/up{number}")
            held.connect(f"ipc://{tmp_path}/l1")
            push.connect(f"ipc://{tmp_path}/l2")
            held.send(b"a", zmq.DONTWAIT)
            push.send(b"b")
            assert pull.recv() == b"b"
            proxy.end()
            for sock in (pull, held, push):
                sock.set(zmq.LINGER, 0)
        before = before or descriptors(proxy.pid)
        assert list(tmp_path.glob("l*")) == []
    assert descriptors(proxy.pid) == before
    context.term()


PARENT = """
import os, sys, time
from harness.proxy import Leg, Proxy
proxy = Proxy()
proxy.begin([Leg("relay", "c", "b", sys.argv[1], sys.argv[1] + ".up")])
if sys.argv[2] == "forked" and os.fork() == 0:
    time.sleep(60)  # keeps a copy of the control socket
    os._exit(0)
print(proxy.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["alone", "forked"])
def test_nothing_is_left_when_the_parent_is_killed(tmp_path: Path, how: str) -> None:
    path = tmp_path / "listen"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PARENT, str(path), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd="/", start_new_session=True) as parent:
        if parent.stdout is None:
            pytest.fail("no pipe to the parent")
        pid = int(parent.stdout.readline())
        assert path.exists()
        parent.kill()
        until(lambda: not path.exists(), "the listening path to go")
        until(lambda: not alive(pid), "the proxy to end")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("how", ["stop", "sigterm"])
def test_stopping_removes_the_listening_paths(tmp_path: Path, how: str) -> None:
    proxy = Proxy()
    proxy.begin([Leg("relay", "c", "b", f"{tmp_path}/listen", f"{tmp_path}/up")])
    os.kill(proxy.pid, signal.SIGINT)  # Ctrl-C goes to the whole group: the parent decides
    assert proxy.status().quiet
    if how == "sigterm":
        os.kill(proxy.pid, signal.SIGTERM)
        until(lambda: not (tmp_path / "listen").exists(), "the listening path to go")
    assert proxy.stop() == (143 if how == "sigterm" else 0)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProxyError):
        proxy.status()


def test_a_path_bound_by_another_is_left_alone(world: World, tmp_path: Path) -> None:
    world.begin()
    path = tmp_path / "listen"
    path.unlink()
    path.touch()
    world.proxy.end()
    assert path.exists()


def test_the_proxy_process_is_light() -> None:
    code = "import sys, harness.proxy.server; print(*(n.partition('.')[0] for n in sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    out = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd="/", capture_output=True, text=True, check=True
    )
    foreign = set(out.stdout.split()) - set(sys.stdlib_module_names)
    assert foreign & {"torch", "numpy", "zmq", "subprocess", "pytest", "hypothesis"} == set()
    assert {"harness", "msgspec"} <= foreign


def test_bad_requests_are_refused_in_one_sentence(proxy: Proxy, tmp_path: Path) -> None:
    leg = Leg("relay", "c", "b", f"{tmp_path}/listen", f"{tmp_path}/up")
    taken = tmp_path / "taken"
    taken.touch()

    def refused(expected: str, *legs: Leg, rules: tuple[FrameRule, ...] = (), classify: str | None = None) -> None:
        with pytest.raises(ProxyError, match=expected):
            proxy.begin(legs, rules, classify)
        assert not (tmp_path / "listen").exists()

    good = FrameRule(1, "drop", "relay", "c", "step")
    refused("no leg relay of dp0.rank1; there is: relay of c", leg, rules=(rule(),))
    refused("rule 1: the index is used twice", leg, rules=(good, good))
    refused("rule 1: nth must be 1 or more, not 0", leg, rules=(rule(nth=0),))
    refused("rule 1: after must be seconds", leg, rules=(rule(after=float("nan")),))
    refused("rule 1: kind is empty", leg, rules=(rule(kind=""),))
    refused("Invalid enum value 'melt'", leg, rules=(rule("melt"),))
    refused(f"cannot listen at {taken}", leg, Leg("x", "c", "b", str(taken), f"{tmp_path}/up"))
    refused("retry must be seconds above 0, not 0", Leg("x", "c", "b", leg.listen, leg.upstream, retry=0))
    refused("bad address 'udp://x'", leg, Leg("x", "c", "b", "udp://x", f"{tmp_path}/up"))
    refused("cannot load classify 'no.such:thing'", leg, classify="no.such:thing")
    refused("bad classify 'thing'", leg, classify="thing")
    with pytest.raises(ProxyError, match="no run is open"):
        proxy.end()
    proxy.begin([leg])
    with pytest.raises(ProxyError, match="a run is open"):
        proxy.begin([leg])
    with pytest.raises(ProxyError, match="no rule 3 to release; there is: none"):
        proxy.release(3)
    proxy.end()
    assert proxy.status() == Status(True, 0, [], [], None, [], 0, [])


def test_the_ledger_can_be_read_in_parts(world: World) -> None:
    world.begin()
    push, pull = world.pair(zmq.PUSH, zmq.PULL)
    found: list[Record] = []
    at = 0
    for number in range(3):
        push.send(b"step %d" % number)
        pull.recv()
        part = world.proxy.ledger(at)
        found, at = found + part.records, part.next
    times = [record.t_ns for record in found]
    assert times == sorted(times)
    assert found == world.proxy.end().records[: len(found)]
