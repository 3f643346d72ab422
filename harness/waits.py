"""The wait-for graph across all processes, and the proof that a wedge is one.

A node is a wait; an edge says who could end it. Collectives need every rank that has not issued the same operation,
receives need the binder of their link, an asyncio client needs whoever sends on the sockets that its tasks await. If
the system is still (see `harness.stillness`), a user is owed something, and every wait is explained by such edges, then
nothing left can end any of them: the wedge is proved. What cannot be explained makes it suspected.

`examine` is a pure function of a history, so that a saved history proves its wedge again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from msgspec import Struct

from harness import stillness
from harness.clock import MS
from harness.history import Event, History, Process, Wait
from harness.targets import Target
from harness.verdict import Blame, Edge, Grade, Proof


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
        if event.site in ("startup", "shutdown"):
            begun[event.site] = event.kind == "begin"
        elif event.site == "request.sent":
            requests[event.number] = True
        elif event.site in ("request.finished", "request.failed"):
            requests[event.number] = False
    waiting = [f"{item} of the engine" for item, open_ in begun.items() if open_]
    return tuple(waiting + [f"request r{number} to client" for number, open_ in sorted(requests.items()) if open_])


def examine(history: History, target: Target) -> Certificate | None:
    """The certificate of a wedge, or None if the history's double look proves or suggests none."""
    if history.look is None:
        return None
    tested = stillness.test(history.look, thread_names(history.events), target.watches)
    debts = owed(history)
    if not tested.still or tested.ends_at is not None or not debts:
        return None
    graph = Graph(history, target)
    doubts = [*tested.doubts, *graph.doubts]
    blame = graph.blame(debts)
    latency = (history.look.b.ended - history.last_progress) / MS
    facts = [*tested.facts, *(f"not explained: {doubt}" for doubt in doubts)]
    return Certificate(
        "suspected" if doubts else "proved", blame, Proof(round(latency, 1), tuple(facts)), graph.fingerprint()
    )


def thread_names(events: Iterable[Event]) -> dict[tuple[str, int], str]:
    """The names that threads were started under, by role and thread id."""
    return {(event.role, event.value): event.text for event in events if event.site == "thread"}


class _Node(Struct, frozen=True):
    """One wait, who could end it, and in which way it is lost if a frame is."""

    edge: Edge
    frame: int = 0
    link: str = ""
    collective: int = 0


class Graph:
    """All waits of a double look's second look, with the edges that the events give them."""

    def __init__(self, history: History, target: Target) -> None:
        self._history, self._target = history, target
        self.doubts: list[str] = []
        self._dead = {p.role: p for p in history.processes if p.status is not None and _before(p, history)}
        self._nodes: dict[str, list[_Node]] = {}
        if history.look is not None:
            for snapshot in history.look.b.processes:
                for wait in snapshot.waits:
                    self._nodes.setdefault(snapshot.role, []).append(self._node(snapshot.role, wait))

    def _node(self, role: str, wait: Wait) -> _Node:
        end = self._history.look.b.ended if self._history.look is not None else self._history.cleanup
        since = round((end - wait.since) / MS, 1)
        link = wait.site.rpartition(".")[0]
        if wait.number >= 0 and self._is_group(link):
            return self._collective(role, wait, link, since)
        sources = [source.removesuffix(".recv") for source in wait.text.split("|")] if wait.text else [link]
        links = [source for source in sources if source not in ("fd", "loop") and not source.endswith(".send")]
        if not links:
            return self._silent(role, wait, since)
        return self._message(role, wait, links[0], since)

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
        return _Node(edge, collective=wait.number)

    def _message(self, role: str, wait: Wait, link: str, since: float) -> _Node:
        sender = self._sender(role, link)
        got = [event for event in self._history.of(role, f"{link}.recv", "after") if event.ok and event.kind != "?"]
        if link == "relay":
            steps = [event for event in got if event.kind == "step"]
            frame = len(steps) + 1
            what = f"frame {frame} on relay" if steps or not self._in_handshake(role) else "the end of the handshake"
        else:
            frame, what = len(got) + 1, f"message {len(got) + 1} on {link}"
        why = f"{sender} is dead" if sender in self._dead else "nothing left can send it"
        return _Node(Edge(role, wait.site, what, since, (sender,), why), frame=frame, link=link)

    def _in_handshake(self, role: str) -> bool:
        kinds = {event.kind for event in self._history.of("dp0.rank0", "relay.send", "after")}
        done = any(event.kind == "done" for event in self._history.of(role, "relay.recv", "after"))
        return "hello" in kinds and not done

    def _sender(self, role: str, link: str) -> str:
        binder = self._target.binder(link)
        if binder != role:
            return binder
        connectors = self._target.connectors(link, self._history.plan)
        return connectors[0] if connectors else "client"

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
            if node.link != "relay" or not node.edge.waits_for.startswith("frame"):
                continue
            sent = [e for e in self._history.of(node.edge.ended_by[0], "relay.send", "after") if e.kind == "step"]
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
        sender, receiver, n = _person(sent.role), _person(node.edge.role), node.frame
        event = f"{sent.role}:relay.send[{sent.kind}]#{sent.n}:after"
        frames = [f for f in self._history.frames if f.link == "relay" and f.connector == node.edge.role]
        carried = [f for f in frames if f.kind == "step" and f.fate != "released"]
        cut = next((f for f in frames if f.kind == "step" and f.nth == n and f.fate in ("dropped", "held")), None)
        if cut is not None and cut.fate == "dropped":
            return f"{sender.capitalize()} published frame {n}, and it was dropped on its way to {receiver}.", event
        if cut is not None:
            return f"{sender.capitalize()} published frame {n}, and it is held on its way to {receiver}.", event
        joined = [f.t for f in frames if f.kind == "SUBSCRIBE" and f.fate in ("passed", "released")]
        if not frames:
            joined = [e.t for e in self._history.of(node.edge.role, "relay.subscribe", "after")]
        if not joined or joined[0] > sent.t:
            early = f"before {receiver}'s subscription was registered, so it was dropped."
            return f"{sender.capitalize()} published frame {n} {early}", event
        if frames and len(carried) < n:
            return f"{sender.capitalize()} published frame {n}, and it never left {sender}'s socket.", event
        return f"{sender.capitalize()} published frame {n}, and it never reached {receiver}.", event

    def _without_loss(self, chain: list[_Node]) -> tuple[_Node | None, str, str]:
        for node in chain:
            dead = [role for role in node.edge.ended_by if role in self._dead]
            if dead:
                how = self._target.exit_meaning(self._dead[dead[0]].status or 0)
                waiter = _person(node.edge.role).capitalize()
                sentence = f"{waiter} waits for {node.edge.waits_for}, which only {_person(dead[0])} can end, and "
                return node, f"{sentence}{_person(dead[0])} is dead ({how}).", f"{dead[0]}:exit"
        for node in chain:
            if node.collective:
                sentence = f"{_person(node.edge.role).capitalize()} waits in {node.edge.waits_for}: {node.edge.why}."
                return node, sentence, f"{node.edge.role}:{node.edge.site}#{node.collective}:before"
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


def _before(process: Process, history: History) -> bool:
    return process.ended is not None and process.ended <= history.cleanup


def _person(role: str) -> str:
    """A role as a sentence says it: dp0.rank1 is rank 1."""
    return f"rank {role.rpartition('rank')[2]}" if "rank" in role else f"the {role}"


def _anybody(role: str) -> str:
    return role if not role.startswith("dp") or role.endswith("rank0") else "dp*.rank+"
