"""The wait-for graph across all processes, and the proof that a wedge is one.

A node is a wait; an edge says who could end it. Collectives need every rank that has not issued the same operation,
receives need the binder of their link, an asyncio client needs whoever sends on the sockets that its tasks await. If
the system is still (see `harness.stillness`), a user is owed something, and every wait is explained by such edges, then
nothing left can end any of them: the wedge is proved. What cannot be explained makes it suspected.

`examine` is a pure function of a history, so that a saved history proves its wedge again.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

from harness import stillness
from harness.clock import MS
from harness.history import Event, History, Process, Wait
from harness.oracles.outcome import ENDS
from harness.recurrence import rounds
from harness.seam.operations import FORM, STORE
from harness.targets import Target
from harness.verdict import Blame, Edge, Grade, Proof

_MOVED = {"send": "sent", "recv": "received"}


class Certificate(Struct, frozen=True):
    """A wedge: how sure, who is to blame, what it rests on, and its shape without numbers or rank identities."""

    grade: Grade
    blame: Blame
    proof: Proof
    fingerprint: str


def owed(history: History) -> tuple[str, ...]:
    """What a user is still owed: a start-up, requests, a shutdown; each as 'request r0 to client'."""
    begun: dict[str, bool] = {}
    requests: dict[int, bool] = {}
    for event in history.events:
        if event.side != "mark":
            continue
        if event.site in ("startup", "utility", "demand", "shutdown"):
            begun[event.site] = event.kind == "begin"
        elif event.site == "request.sent":
            requests[event.number] = True
        elif event.site in ENDS:
            requests[event.number] = False
    waiting = [f"{item} of the engine" for item, open_ in begun.items() if open_]
    return tuple(waiting + [f"request r{number} to client" for number, open_ in sorted(requests.items()) if open_])


def examine(history: History, target: Target) -> Certificate | None:
    """The certificate of a wedge, or None if the history's double look proves or suggests none."""
    if history.ended == "budget":
        return _livelock(history)
    if history.look is None or history.moved:
        return None
    slices = target.slices(history.plan)
    tested = stillness.test(history.look, thread_names(history.events), target.watches, slices)
    debts = owed(history)
    if not tested.still or tested.ends_at is not None or not debts:
        return None
    graph = Graph(history, target)
    doubts = [*tested.doubts, *graph.doubts]
    blame = graph.blame(debts)
    latency = (history.look.b.ended - history.last_progress) / MS
    facts = [*tested.facts, *_traffic(history), *_left(history), *(f"not explained: {doubt}" for doubt in doubts)]
    if history.left_alone:
        facts.append(f"left alone for {history.left_alone:.1f} s more, and nothing moved")
    return Certificate(
        "suspected" if doubts else "proved", blame, Proof(round(latency, 1), tuple(facts)), graph.fingerprint()
    )


def _traffic(history: History) -> list[str]:
    """How many messages each role has sent and received on each link, a sentence for a link."""
    counts: dict[str, Counter[tuple[str, str]]] = {}
    for event in history.events:
        link, _, call = event.site.rpartition(".")
        if event.side == "after" and event.ok and call in _MOVED:
            counts.setdefault(link, Counter())[event.role, _MOVED[call]] += 1
    return [
        f"{link}: " + ", ".join(f"{role} {call} {count}" for (role, call), count in sorted(moved.items()))
        for link, moved in sorted(counts.items())
    ]


def _left(history: History) -> list[str]:
    """The faults that have not fired: none of them can any more, since those at whose instants they stand are stuck."""
    fired = {event.number for event in history.of(None, "fault.fired")} | {frame.rule for frame in history.frames}
    left = [str(fault) for index, fault in enumerate(history.plan.faults) if index not in fired]
    return [f"has not fired, and cannot any more: {fault}" for fault in left]


def _livelock(history: History) -> Certificate | None:
    """Of a run whose budget was spent: whether all that was done in the end was the same, again and again."""
    debts, found = owed(history), () if history.lost_events else rounds(history)
    if not debts or not found:
        return None
    first = max(found, key=lambda one: one.times)
    names = " and ".join(_person(one.role) for one in found)
    does = "does" if len(found) == 1 else "do"
    told = ", ".join(dict.fromkeys(first.calls))
    sentence = (
        f"{names.capitalize()} {does} the same again and again, and nothing that is owed gets on: "
        f"{_person(first.role)} {told}, {first.times:,} times."
    )
    shape = sorted(f"{_anybody(one.role)} {' '.join(sorted(set(one.calls)))}" for one in found)
    facts = [f"{one.role}: {' > '.join(one.calls)}, {one.times:,} times" for one in found]
    return Certificate(
        "suspected",
        Blame(sentence, "", (), debts),
        Proof(round((history.cleanup - history.last_progress) / MS, 1), tuple(facts)),
        hashlib.blake2b("\n".join(["again", *shape]).encode(), digest_size=8).hexdigest(),
    )


def thread_names(events: Iterable[Event]) -> dict[tuple[str, int], str]:
    """The names that threads were started under, by role and thread id."""
    return {(event.role, event.value): event.text for event in events if event.site == "thread"}


class _Node(Struct, frozen=True):
    """One wait, who could end it, and, if it is for one frame of the relay, for the ``frame``-th of which ``kind``.

    ``every``: it needs all who could end it, as a collective does; else any one of them is enough.
    """

    edge: Edge
    kind: str = ""
    frame: int = 0
    collective: int = 0
    every: bool = False

    @property
    def name(self) -> str:
        """The frame as a sentence says it."""
        return f"frame {self.frame}" if self.kind == "step" else f"the {self.kind} frame"


_LOOP = "loop.select"
"""Where the event loop waits."""


class _Source(Struct, frozen=True):
    """One socket that a wait is on: a message has to come, or (``sends``) there has to be room for one."""

    link: str
    endpoint: str
    sends: bool


_WITHIN = ("thread.",)
"""Waits that only another thread of the same process can end."""

_AMONG_RANKS = {f"{STORE}.": "what the others put in the store", FORM: "the others, to form the group"}
"""Waits that need every other rank, and what for."""

_SYSTEM = ("fd.", "process.", "file.", "time.")
"""Waits for the system: for the end of a process, for a word on a descriptor, for a lock, for the time."""


class Graph:
    """All waits of a double look's second look, with the edges that the events give them."""

    def __init__(self, history: History, target: Target) -> None:
        self._history, self._target = history, target
        self.doubts: list[str] = []
        self._dead = {p.role: p for p in history.processes if p.status is not None and _before(p, history)}
        self._roles = {str(p.pid): p.role for p in history.processes}
        self._nodes: dict[str, list[_Node]] = {}
        if history.look is not None:
            names = thread_names(history.events)
            for snapshot in history.look.b.processes:
                for wait in snapshot.waits:
                    if names.get((snapshot.role, wait.tid)) in target.watches:
                        continue  # it waits for whatever happens, and nobody waits for it
                    self._nodes.setdefault(snapshot.role, []).append(self._node(snapshot.role, wait))

    def _node(self, role: str, wait: Wait) -> _Node:
        end = self._history.look.b.ended if self._history.look is not None else self._history.cleanup
        since = round((end - wait.since) / MS, 1)
        link = wait.site.rpartition(".")[0]
        if wait.number >= 0 and self._is_group(link):
            return self._collective(role, wait, link, since)
        if wait.site.startswith(_WITHIN):
            return _Node(Edge(role, wait.site, wait.text, since, (role,), "no other thread of it goes on"))
        if wait.site.startswith(tuple(_AMONG_RANKS)):
            return self._rendezvous(role, wait, since)
        if wait.site.startswith(_SYSTEM):
            return self._system(role, wait, since)
        if wait.site == _LOOP and not wait.text:
            return self._idle_loop(role, wait, since)
        sources = self._sources(wait, link)
        if not sources:
            return self._silent(role, wait, since)
        return self._message(role, wait, sources, since)

    def _sources(self, wait: Wait, link: str) -> list[_Source]:
        names = wait.text.split("|") if wait.text else [link]
        found = []
        for name in names:
            endpoint = name.removesuffix(".recv").removesuffix(".send")
            if endpoint not in ("fd", "loop"):
                found.append(_Source(self._target.link_of(endpoint), endpoint, name.endswith(".send")))
        return found

    def _is_group(self, name: str) -> bool:
        return any(
            event.site.startswith(f"{name}.")
            and event.number >= 0
            and event.side == "before"
            and event.site.split(".")[-1] not in ("send", "recv")
            for event in self._history.events
        )

    def _collective(self, role: str, wait: Wait, group: str, since: float) -> _Node:
        issued = {
            event.role: event.site
            for event in self._history.events
            if event.side == "before" and event.number == wait.number and event.site.startswith(f"{group}.")
        }
        ranks = self._history.plan.topology.ranks
        missing = tuple(rank for rank in ranks if rank not in issued)
        other = tuple(rank for rank in ranks if rank in issued and issued[rank] != wait.site)
        enders = missing or other
        why = ""
        if missing:
            why = f"needs {', '.join(missing)}"
        elif other:
            why = f"{', '.join(other)} issued {issued[other[0]]} instead"
        else:
            self.doubts.append(f"all ranks have issued {wait.site} #{wait.number}, yet {role} waits in it")
        edge = Edge(role, wait.site, f"{wait.site} #{wait.number}", since, enders, why)
        return _Node(edge, collective=wait.number, every=True)

    def _rendezvous(self, role: str, wait: Wait, since: float) -> _Node:
        what = next(words for site, words in _AMONG_RANKS.items() if wait.site.startswith(site))
        formed = {event.role for event in self._history.of(None, FORM, "after") if event.ok}
        enders = tuple(rank for rank in self._history.plan.topology.ranks if rank != role and rank not in formed)
        dead = [rank for rank in enders if rank in self._dead]
        why = f"{', '.join(dead)} is dead" if dead else "nobody left puts it there"
        return _Node(Edge(role, wait.site, what, since, enders, why), every=True)

    def _system(self, role: str, wait: Wait, since: float) -> _Node:
        """A wait on descriptors: any process of the run may be at the other end of a pipe."""
        enders: list[str] = []
        what: list[str] = []
        for name in filter(None, wait.text.split("|")):
            if name.startswith("pid:"):
                found = self._roles.get(name.removeprefix("pid:"), f"process {name.removeprefix('pid:')}")
                enders.append(found)
                what.append(f"the end of {_person(found)}")
            elif name == "event":
                what.append("a word of another thread")
                enders.append(role)
            elif name in ("pipe", "a locked file"):
                what.append("a word on a pipe" if name == "pipe" else name)
                enders += [other for other in self._roles.values() if other not in (role, *self._dead)]
            elif name == "fd":
                self.doubts.append(f"{role} waits at {wait.site} on a descriptor that the seam does not know")
            else:
                source = _Source(self._target.link_of(name), name, sends=False)
                enders += self._peers(role, source)
                what.append(self._what(role, source))
        words = " or ".join(dict.fromkeys(what)) or "its time"
        edge = Edge(role, wait.site, words, since, tuple(dict.fromkeys(enders)), "none of these comes")
        return _Node(edge)

    def _idle_loop(self, role: str, wait: Wait, since: float) -> _Node:
        """The tasks of the loop await what other tasks have to set, and none of them can go on."""
        looked = self._history.look
        snapshots = looked.b.processes if looked is not None else ()
        tasks = next((snapshot.tasks for snapshot in snapshots if snapshot.role == role), ())
        what = "; ".join(dict.fromkeys(map(_awaited, tasks))) or "what no task of its loop is left to do"
        return _Node(Edge(role, wait.site, what, since, (role,), "no task of its loop is left to set it"))

    def _message(self, role: str, wait: Wait, sources: list[_Source], since: float) -> _Node:
        enders = tuple(dict.fromkeys(peer for source in sources for peer in self._peers(role, source)))
        frame = self._frame(role) if any(self._hears_relay(role, source) for source in sources) else None
        what = dict.fromkeys(self._what(role, source) for source in sources)
        dead = [peer for peer in enders if peer in self._dead]
        why = f"{', '.join(dead)} is dead" if dead else "nothing left can send it"
        if all(source.sends for source in sources):
            why = why if dead else "nothing left takes one"
        edge = Edge(role, wait.site, " or ".join(what), since, enders, why)
        return _Node(edge, *frame) if frame is not None else _Node(edge)

    def _what(self, role: str, source: _Source) -> str:
        if source.sends:
            return f"room on {source.endpoint}"
        if self._hears_relay(role, source):
            kind, frame = self._frame(role)
            if kind == "done":
                return "the end of the handshake"
            return f"frame {frame} on relay" if kind == "step" else f"the {kind} frame on relay"
        if source.link == "relay":
            return "a subscription on relay"
        got = [e for e in self._history.of(role, f"{source.link}.recv", "after") if e.ok and e.kind != "?"]
        return f"message {len(got) + 1} on {source.link}"

    def _hears_relay(self, role: str, source: _Source) -> bool:
        return source.link == "relay" and not source.sends and role != self._target.binder("relay")

    def _frame(self, role: str) -> tuple[str, int]:
        """Which frame of the relay the role has to get next: its kind, and which of that kind it is."""
        got = [event.kind for event in self._history.of(role, "relay.recv", "after") if event.ok]
        if not {"step", "done", "go"} & {*got}:
            sent = {event.kind for event in self._history.of(self._target.binder("relay"), "relay.send", "after")}
            if "hello" in sent:
                return "done", 1
            if any(event.kind == "join" for event in self._history.of(role, "control.send", "after")):
                return "go", 1
        return "step", got.count("step") + 1

    def _peers(self, role: str, source: _Source) -> tuple[str, ...]:
        """Who is at the other end."""
        binder, plan = self._target.binder(source.link), self._history.plan
        if binder != role:
            return (binder,)
        connectors = self._target.connectors(source.link, plan)
        mine = [peer for peer in connectors if self._target.endpoint(source.link, peer, plan) == source.endpoint]
        return tuple(mine) or connectors or ("client",)

    def _silent(self, role: str, wait: Wait, since: float) -> _Node:
        self.doubts.append(f"{role} waits at {wait.site} for nothing that the seam knows")
        return _Node(Edge(role, wait.site, "something unknown", since, (), "unknown"))

    def chain(self) -> list[_Node]:
        """The waits that the client's debts rest on, from the client on, each once."""
        found: list[_Node] = []
        todo, seen = ["client"], {"client"}
        while todo:
            for node in self._nodes.get(todo.pop(0), []):
                found.append(node)
                for role in node.edge.ended_by:
                    if role not in seen:
                        seen.add(role)
                        todo.append(role)
        return found

    def lost(self) -> tuple[_Node, Event] | None:
        """A wait for a frame that was sent and never came, and the event of its sending."""
        for node in self.chain():
            if not node.frame:
                continue
            here = self._target.endpoint("relay", node.edge.role, self._history.plan)
            sends = self._history.of(self._target.binder("relay"), "relay.send", "after")
            sent = [event for event in sends if event.kind == node.kind and event.text in ("", here)]
            if len(sent) >= node.frame:
                return node, sent[node.frame - 1]
        return None

    def blame(self, debts: tuple[str, ...]) -> Blame:
        """The sentence, the event before which all was still possible, the waits (the beginning first), the debts."""
        chain = self.chain()
        lost = self.lost()
        first: _Node | None
        if lost is not None:
            first, sent = lost
            sentence, event = self._how_lost(first, sent)
        else:
            first, sentence, event = self._without_loss(chain)
        waits = [first.edge] if first is not None else []
        waits += [node.edge for node in reversed(chain) if node is not first]
        return Blame(sentence, event, tuple(waits), debts)

    def _how_lost(self, node: _Node, sent: Event) -> tuple[str, str]:
        receiver, n = _person(node.edge.role), node.frame
        subscribes = self._target.frame("relay", "join", self._history.plan) == "SUBSCRIBE"
        told = f"{_person(sent.role).capitalize()} {'published' if subscribes else 'sent'} {node.name}"
        event = f"{sent.role}:relay.send[{sent.kind}]#{sent.n}:after"
        frames = [f for f in self._history.frames if f.link == "relay" and f.connector == node.edge.role]
        carried = [f for f in frames if f.kind == node.kind and f.fate not in ("released", "injected")]
        cut = next((f for f in carried if f.nth == n and f.fate in ("dropped", "held")), None)
        if cut is not None:
            how = "it was dropped" if cut.fate == "dropped" else "it is held"
            return f"{told}, and {how} on its way to {receiver}.", event
        joined = [f.t for f in frames if f.kind == "SUBSCRIBE" and f.fate in ("passed", "released")]
        if not frames:
            joined = [e.t for e in self._history.of(node.edge.role, "relay.subscribe", "after")]
        if subscribes and (not joined or joined[0] > sent.t):
            return f"{told} before {receiver}'s subscription was registered, so it was dropped.", event
        if frames and len(carried) < n:
            return f"{told}, and it never left {_person(sent.role)}'s socket.", event
        return f"{told}, and it never reached {receiver}.", event

    def _without_loss(self, chain: list[_Node]) -> tuple[_Node | None, str, str]:
        for node in chain:
            dead = [role for role in node.edge.ended_by if role in self._dead]
            if dead and (node.every or len(dead) == len(node.edge.ended_by)):
                how = self._target.exit_meaning(self._dead[dead[0]].status or 0)
                waiter = _person(node.edge.role).capitalize()
                sentence = f"{waiter} waits for {node.edge.waits_for}, which only {_person(dead[0])} can end, and "
                return node, f"{sentence}{_person(dead[0])} is dead ({how}).", f"{dead[0]}:exit"
        for node in chain:
            if node.collective:
                sentence = f"{_person(node.edge.role).capitalize()} waits in {node.edge.waits_for}: {node.edge.why}."
                return node, sentence, f"{node.edge.role}:{node.edge.site}#{node.collective}:before"
        for node in chain:
            if node.edge.ended_by == (node.edge.role,):
                sentence = f"{_person(node.edge.role).capitalize()} waits for {node.edge.waits_for}: {node.edge.why}."
                return node, sentence, ""
        if chain:
            node = chain[-1]
            return node, f"{_person(node.edge.role).capitalize()} waits for {node.edge.waits_for}.", ""
        return None, "A user is owed something, and every process sleeps for ever.", ""

    def fingerprint(self) -> str:
        """16 hexadecimal digits: equal for wedges that differ only in numbers and in which rank >= 1 is which."""
        shape = sorted(
            {
                f"{_anybody(n.edge.role)} {n.edge.site} <- {','.join(sorted({_anybody(r) for r in n.edge.ended_by}))}"
                for n in self.chain()
            }
        )
        kind = "lost" if self.lost() is not None else "stuck"
        dead = sorted({_anybody(role) for role in self._dead})
        return hashlib.blake2b("\n".join([kind, *dead, *shape]).encode(), digest_size=8).hexdigest()


def _awaited(task: str) -> str:
    """What a task of a loop awaits, as a look has written it down: 'name: outermost > innermost awaits something'."""
    where, _, what = task.partition(": ")[2].rpartition(" awaits ")
    return f"{what} in {where.rpartition(' > ')[2]}"


def _before(process: Process, history: History) -> bool:
    return process.ended is not None and process.ended <= history.cleanup


def _person(role: str) -> str:
    """A role as a sentence says it: dp0.rank1 is rank 1."""
    return f"rank {role.rpartition('rank')[2]}" if "rank" in role else f"the {role}"


def _anybody(role: str) -> str:
    return role if not role.startswith("dp") or role.endswith("rank0") else "dp*.rank+"
