"""The body of a standalone script: a relay of tensor-parallel ranks in miniature, and the faults of one plan.

`harness.script` copies this file behind the plan, without what the plan does not need. So it may import nothing but the
standard library, pyzmq and torch. Sections that can be left out begin with a line ``# [relay NAME]`` or ``# [frames]``
and end with ``# [end]``.
"""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import json
import os

# [frames]
import select

# [end]
import signal

# [frames]
import socket

# [end]
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import zmq

# [plan]
TP = 2
RELAY = "unsynchronised"
REQUESTS: list[dict[str, Any]] = []
FAULTS: list[dict[str, Any]] = []
LIMIT = 5.0
# [end]

SUMS, GATHERS = 5, 2
"""Collectives of one forward pass, as a model of two layers has them."""

HANDSHAKE_LIMIT = 5.0
"""Seconds that a handshake may take."""

LATE = 1000
"""What a rank whose time is up adds to the sum of those who have heard."""


# ---- instants: what a process does to itself when it passes one ----


class Instants:
    """Counts the calls of one process, and strikes where a fault of the plan stands."""

    def __init__(self, role: str, tell: int) -> None:
        self.role = role
        self._tell = tell
        self._counts: collections.Counter[tuple[str, str]] = collections.Counter()

    @contextlib.contextmanager
    def at(self, site: str, kind: str = "") -> Iterator[None]:
        """Around one call; the kind of a frame that is received is `named` when it has come."""
        self._pass(site, kind, "before", 1)
        yield
        self.after(site, kind)

    def after(self, site: str, kind: str = "") -> None:
        for counted in {"", kind}:
            self._counts[site, counted] += 1
        self._pass(site, kind, "after", 0)

    def _pass(self, site: str, kind: str, side: str, more: int) -> None:
        for counted in {"", kind}:
            name = f"{self.role}:{site}{f'[{counted}]' if counted else ''}"
            here = f"{name}#{self._counts[site, counted] + more}:{side}"
            for index, fault in enumerate(FAULTS):
                if fault.get("until") == here:
                    os.write(self._tell, bytes((index,)))
                if fault.get("at") == here:
                    strike(fault)

    def start(self) -> None:
        for fault in FAULTS:
            if fault.get("at") == f"{self.role}:start":
                strike(fault)


def strike(fault: dict[str, Any]) -> None:
    print(f"fault   {fault['kind']} at {fault['at']}", flush=True)
    if fault["kind"] == "delay":
        time.sleep(fault["seconds"])
    elif fault["kind"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault["kind"] == "exit":
        os._exit(fault["code"])
    elif fault["kind"] == "stop":
        seconds = fault.get("seconds")
        if seconds is not None and os.fork() == 0:  # somebody has to continue it
            time.sleep(seconds)
            os.kill(os.getppid(), signal.SIGCONT)
            os._exit(0)
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


# [frames]
# ---- frames: a proxy that reads ZMTP 3 on the way between two real sockets ----


class Proxy:
    """Carries the connections of each faulted link, a message at a time, in a thread of the parent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._flows: list[Flow] = []
        self._listeners: dict[socket.socket, tuple[str, str]] = {}
        self.signals, self.tell = os.pipe()
        for link, connector in {(fault["link"], fault["victim"]) for fault in FAULTS if "link" in fault}:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(folder / f"{link}.via.{connector}"))
            listener.listen()
            self._listeners[listener] = (link, connector)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            sides = {flow.source: flow for flow in self._flows}
            due = min((flow.due for flow in self._flows if flow.due), default=time.monotonic() + 1)
            watched: list[Any] = [*self._listeners, *sides, self.signals]
            for one in select.select(watched, [], [], max(0, due - time.monotonic()))[0]:
                if one == self.signals:
                    for index in os.read(self.signals, 64):
                        for flow in self._flows:
                            flow.release(index)
                elif one in self._listeners:
                    self._connect(*self._listeners[one], one.accept()[0])
                elif not sides[one].read():
                    self._flows.remove(sides[one])
            for flow in self._flows:
                if flow.due and flow.due <= time.monotonic():
                    flow.release(None)

    def _connect(self, link: str, connector: str, near: socket.socket) -> None:
        far = socket.socket(socket.AF_UNIX)
        while far.connect_ex(str(path_of(self._folder, link, connector))):
            time.sleep(0.001)  # the binder is on its way
        counts: collections.Counter[str] = collections.Counter()
        rules = [(i, f) for i, f in enumerate(FAULTS) if (f.get("link"), f.get("victim")) == (link, connector)]
        self._flows += [Flow(near, far, rules, counts), Flow(far, near, rules, counts)]


class Flow:
    """One direction of one connection."""

    def __init__(self, source: socket.socket, sink: socket.socket, rules: list[Any], counts: Any) -> None:
        self.source, self._sink, self._rules = source, sink, rules
        self._counts = counts
        self._buffer = bytearray()
        self._greeted = 0
        self._held: collections.deque[tuple[bytes, int | None]] = collections.deque()
        self.due: float | None = None

    def read(self) -> bool:
        try:
            data = self.source.recv(1 << 16)
        except OSError:
            data = b""
        if not data and not self._held:
            with contextlib.suppress(OSError):
                self._sink.shutdown(socket.SHUT_WR)
        if not data:
            return False
        greeting = data[: max(0, 64 - self._greeted)]
        self._greeted += len(greeting)
        self._sink.sendall(greeting)
        self._buffer += data[len(greeting) :]
        while (message := self._message()) is not None:
            self._meet(*message)
        return True

    def _message(self) -> tuple[bytes, str] | None:
        """The next whole message or command with its kind."""
        at, bodies, command = 0, [], False
        while len(self._buffer) > at + 1:
            flags = self._buffer[at]
            wide = 8 if flags & 2 else 1
            if len(self._buffer) < at + 1 + wide:
                return None
            size = int.from_bytes(self._buffer[at + 1 : at + 1 + wide], "big")
            end = at + 1 + wide + size
            if len(self._buffer) < end:
                return None
            bodies.append(bytes(self._buffer[at + 1 + wide : end]))
            command, at = bool(flags & 4), end
            if not flags & 1:
                raw = bytes(self._buffer[:at])
                del self._buffer[:at]
                return raw, kind_of(bodies[-1], command)
        return None

    def _meet(self, raw: bytes, kind: str) -> None:
        self._counts[kind] += 1
        for index, fault in self._rules:
            if fault["frame"] != kind or not 0 <= self._counts[kind] - fault["nth"] < fault.get("count", 1):
                continue
            print(f"fault   {fault['kind']} {kind} #{self._counts[kind]} on {fault['link']}", flush=True)
            if fault["kind"] == "drop":
                return
            if fault["kind"] == "duplicate":
                raw += raw
            elif not fault.get("over"):
                self._held.append((raw, index))
                if fault.get("or_after"):
                    self.due = time.monotonic() + fault["or_after"]
                return
        if self._held:
            self._held.append((raw, None))
        else:
            self._sink.sendall(raw)

    def release(self, index: int | None) -> None:
        """Let go what that fault holds, or what the clock does."""
        if index is not None:
            FAULTS[index]["over"] = True
        if not self._held or index not in (None, self._held[0][1]):
            return
        self.due = None
        while self._held:
            with contextlib.suppress(OSError):
                self._sink.sendall(self._held.popleft()[0])


def kind_of(body: bytes, command: bool) -> str:
    """What a message of this script or a command of ZMTP is called."""
    if command:
        return body[1 : 1 + body[0]].decode()
    return "SUBSCRIBE" if body[:1] == b"\x01" else body.split(b" ", 1)[0].decode()


# [end]


def path_of(folder: Path, link: str, connector: str) -> Path:
    """The socket file to which a link's binder binds."""
    own = link == "relay" and RELAY == "pushpull"
    return folder / (f"relay.{connector}" if own else link)


def address(folder: Path, link: str, connector: str) -> str:
    """Where a connector connects: to the proxy, if a fault stands on its way."""
    faulted = any((fault.get("link"), fault.get("victim")) == (link, connector) for fault in FAULTS)
    return f"ipc://{folder / f'{link}.via.{connector}' if faulted else path_of(folder, link, connector)}"


def frame(kind: str, what: Any) -> bytes:
    """A message: its kind, and the rest as JSON."""
    return f"{kind} {json.dumps(what)}".encode()


def read(raw: bytes) -> tuple[str, Any]:
    """Kind and rest of a message."""
    kind, _, rest = raw.partition(b" ")
    return kind.decode(), json.loads(rest)


# ---- the ranks ----


class Rank:
    """One process of the engine: a gloo group, the relay from rank 0 to the others, and a model that only adds."""

    def __init__(self, rank: int, folder: Path, tell: int) -> None:
        self.rank, self.folder = rank, folder
        self.role = f"dp0.rank{rank}"
        self.here = Instants(self.role, tell)
        self.here.start()
        self.context = zmq.Context()
        self.relay: Relay = RELAYS[RELAY](self)
        if rank == 0:
            self.relay.open()
        dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=TP)
        if rank > 0:
            self.relay.connect()
        self.relay.join()
        if rank == 0:
            self.input, self.output = self.context.socket(zmq.PULL), self.context.socket(zmq.PUSH)
            self.input.connect(address(folder, "input", self.role))
            self.output.connect(address(folder, "output", self.role))
            self.say("ready", {})

    def sum(self, value: int) -> int:
        tensor = torch.tensor([value])
        with self.here.at("tp.all_reduce"):
            dist.all_reduce(tensor)
        return int(tensor.item())

    def broadcast(self, value: int) -> int:
        tensor = torch.tensor([value])
        with self.here.at("tp.broadcast"):
            dist.broadcast(tensor, src=0)
        return int(tensor.item())

    def gather(self, value: int) -> list[int]:
        parts = [torch.zeros(1, dtype=torch.long) for _ in range(TP)]
        with self.here.at("tp.all_gather"):
            dist.all_gather(parts, torch.tensor([value]))
        return [int(part.item()) for part in parts]

    def step(self, last: int) -> int:
        """One forward pass: every rank comes to the same token, and to no other without all ranks."""
        for _ in range(SUMS):
            last = self.sum(last % 97) % 251
        for _ in range(GATHERS):
            last = sum(self.gather(last)) % 251
        return last

    def say(self, kind: str, what: dict[str, Any]) -> None:
        with self.here.at("output.send", kind):
            self.output.send(frame(kind, what))

    def run(self) -> None:
        """Serve one request after another until the word to stop comes."""
        while True:
            asked: dict[str, Any] | None = None
            if self.rank == 0:
                self.here._pass("input.recv", "", "before", 1)
                kind, asked = read(self.input.recv())
                self.here.after("input.recv", kind)
            asked = self.relay.share(asked, idle=True)
            if not asked:
                return
            last = sum(asked["prompt"])
            for number in range(asked["max_tokens"]):
                if number:
                    self.relay.share({"step": number} if self.rank == 0 else None, idle=False)
                last = self.step(last)
                if self.rank == 0:
                    done = number == asked["max_tokens"] - 1
                    self.say("outputs", {"request": asked["request"], "token": last, "done": done})


class Relay:
    """How rank 0 tells the others what to do next."""

    kinds: tuple[int, int]

    def __init__(self, rank: Rank) -> None:
        self.me, self.here = rank, rank.here
        self.socket: Any = rank.context.socket(self.kinds[min(rank.rank, 1)])

    def open(self) -> None:
        with self.here.at("relay.bind"):
            self.socket.bind(f"ipc://{path_of(self.me.folder, 'relay', '')}")

    def connect(self) -> None:
        with self.here.at("relay.connect"):
            self.socket.connect(address(self.me.folder, "relay", self.me.role))
        if self.kinds[1] == zmq.SUB:
            self.socket.subscribe(b"")

    def join(self) -> None:
        """What has to happen before anything is relayed."""

    def go(self) -> None:
        """Rank 0 lets the others begin, and a sum proves that all do."""
        if self.me.rank == 0:
            self.send("go")
        else:
            self.receive("go")
        self.me.sum(1)

    def send(self, kind: str, what: Any = None) -> None:
        with self.here.at("relay.send", kind):
            self.socket.send(frame(kind, what))

    def receive(self, *kinds: str) -> Any:
        self.here._pass("relay.recv", "", "before", 1)
        kind, what = read(self.socket.recv())
        self.here.after("relay.recv", kind)
        if kind not in kinds:
            raise SystemExit(f"{self.me.role}: frame {kind}, expected {' or '.join(kinds)}")
        return kind if len(kinds) > 1 else what

    def share(self, what: Any, *, idle: bool) -> Any:
        """Rank 0 gives, the others get."""
        if self.me.rank > 0:
            return self.receive("step")
        self.send("step", what)
        return what


# [relay unsynchronised]
class Unsynchronised(Relay):
    """PUB/SUB, and nobody asks whether anybody listens. While busy, a broadcast tells how many messages follow."""

    kinds = (zmq.PUB, zmq.SUB)

    def share(self, what: Any, *, idle: bool) -> Any:
        if idle:
            what = super().share(what, idle=True)
        self.me.broadcast(0)
        return what


# [end]
# [relay handshake]
class Handshake(Relay):
    """PUB/SUB behind a handshake: hellos until every rank has heard one, then exactly one done."""

    kinds = (zmq.PUB, zmq.SUB)

    def join(self) -> None:
        until, heard = time.monotonic() + HANDSHAKE_LIMIT, self.me.rank == 0
        while True:
            if self.me.rank == 0:
                self.send("hello")
            elif not heard and self.socket.poll(20):
                self.receive("hello")
                heard = True
            late, joined = divmod(self.me.sum(int(heard) + LATE * int(time.monotonic() > until)), LATE)
            if joined == TP:
                break
            if late:
                raise SystemExit(f"{self.me.role}: no handshake in {HANDSHAKE_LIMIT:g} s")
        if self.me.rank == 0:
            self.send("done")
        else:
            while self.receive("hello", "done") != "done":
                pass


# [end]
# [relay subscribed]
class Subscribed(Relay):
    """XPUB/SUB: rank 0 counts the subscriptions before it publishes anything."""

    kinds = (zmq.XPUB, zmq.SUB)

    def join(self) -> None:
        seen = 0
        while self.me.rank == 0 and seen < TP - 1:
            if not self.socket.poll(int(HANDSHAKE_LIMIT * 1000)):
                raise SystemExit(f"{self.me.role}: {seen} subscriptions in {HANDSHAKE_LIMIT:g} s")
            seen += self.socket.recv()[:1] == b"\x01"
        self.go()


# [end]
# [relay pushpull]
class PushPull(Relay):
    """A PUSH/PULL pair for each rank: what nobody has connected to yet waits, and nothing is lost."""

    kinds = (zmq.PUSH, zmq.PULL)

    def open(self) -> None:
        self._lanes = []
        for rank in range(1, TP):
            with self.here.at("relay.bind"):
                lane = self.me.context.socket(zmq.PUSH)
                lane.bind(f"ipc://{path_of(self.me.folder, 'relay', f'dp0.rank{rank}')}")
                self._lanes.append(lane)

    def join(self) -> None:
        self.go()

    def send(self, kind: str, what: Any = None) -> None:
        for lane in self._lanes:
            with self.here.at("relay.send", kind):
                lane.send(frame(kind, what))


# [end]

RELAYS: dict[str, Callable[[Rank], Relay]] = {one.__name__.lower(): one for one in Relay.__subclasses__()}


# ---- the parent: client, and who watches ----


def rank_main(rank: int, folder: Path, tell: int) -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    one = Rank(rank, folder, tell)
    one.run()


def start(rank: int, folder: Path, tell: int) -> int:
    """A fork: torch need not be imported again."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        rank_main(rank, folder, tell)
        code = 0
    except SystemExit as error:
        print(error, flush=True)
        code = 3
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)


class Watch:
    """What the parent knows of its children, and when it last heard of any."""

    def __init__(self, pids: dict[str, int]) -> None:
        self.pids = pids
        self.ended: dict[str, int] = {}

    def look(self) -> None:
        for role, pid in self.pids.items():
            if role not in self.ended:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    self.ended[role] = os.waitstatus_to_exitcode(status)

    def wedged(self, owed: list[int]) -> int:
        """Tell where everybody stands, and clear up."""
        self.look()
        print(f"\nWEDGED  nothing has moved for {LIMIT:g} s; owed: {', '.join(f'request {n}' for n in owed)}")
        for role, pid in self.pids.items():
            if role in self.ended:
                print(f"\n{role}: ended with {self.ended[role]}", flush=True)
                continue
            print(f"\n{role}, process {pid}:", flush=True)
            os.kill(pid, signal.SIGUSR1)
            time.sleep(0.2)
        self.clear()
        return 1

    def clear(self) -> None:
        for role, pid in self.pids.items():
            if role not in self.ended:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def main() -> int:
    """0 if every request was served, 1 for a wedge, 3 if the ranks gave up by themselves."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tell = os.open(os.devnull, os.O_WRONLY)
        # [frames]
        tell = Proxy(folder).tell
        # [end]
        watch = Watch({f"dp0.rank{rank}": start(rank, folder, tell) for rank in range(TP)})
        context = zmq.Context()
        requests, outputs = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        requests.bind(f"ipc://{folder / 'input'}")
        outputs.bind(f"ipc://{folder / 'output'}")
        here = Instants("client", tell)
        owed = list(range(len(REQUESTS)))
        waiting = collections.deque(owed)
        asked: set[int] = set()

        def ask() -> None:
            while waiting and (REQUESTS[waiting[0]]["at"] == "ready" or not asked & set(owed)):
                number = waiting.popleft()
                asked.add(number)
                with here.at("input.send", "add"):
                    requests.send(frame("add", {"request": number, **REQUESTS[number]}))
                print(f"asked   request {number}", flush=True)

        while owed:
            if not outputs.poll(int(LIMIT * 1000)):
                watch.look()
                if len(watch.ended) == len(watch.pids):
                    print(f"\nENDED   with {watch.ended}; owed: {owed}")
                    return 3
                return watch.wedged(owed)
            kind, told = read(outputs.recv())
            here.after("output.recv", kind)
            if kind == "ready":
                print("ready", flush=True)
            elif told["done"] and told["request"] in owed:
                owed.remove(told["request"])
                print(f"served  request {told['request']}", flush=True)
            ask()
        with here.at("input.send", "stop"):
            requests.send(frame("stop", None))
        until = time.monotonic() + LIMIT
        while len(watch.ended) < TP and time.monotonic() < until:
            watch.look()
            time.sleep(0.01)
        watch.clear()
        context.destroy(0)
        print("\nSERVED  every request")
        return 0


if __name__ == "__main__":
    sys.exit(main())
