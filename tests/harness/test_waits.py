"""The wait-for graph: what each wait is for, who could end it, and which frame was lost."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from harness.history import DoubleLook, Event, Frame, Look, Outsiders, Snapshot, Wait
from harness.plan import EngineOptions
from harness.targets import get
from harness.waits import Graph
from tests.harness.synthetic import MS, call, history, mark, process

ENGINE = get("engine")
CLIENT = ("client", "loop.select", "output.recv")


def sent(t: int, kind: str, to: str = "", number: int = 1) -> Event:
    """Rank 0 has sent a frame on the relay, on the endpoint ``to`` where there are several."""
    return msgspec.structs.replace(call(t, "dp0.rank0", "relay.send", kind=kind, number=number), text=to)


def got(t: int, role: str, kind: str) -> Event:
    return call(t, role, "relay.recv", kind=kind)


def joined(role: str) -> Event:
    return call(1, role, "control.send", kind="join")


def graph(
    waits: Sequence[tuple[str, str, str]],
    events: Sequence[Event] = (),
    relay: str = "pushpull",
    frames: Sequence[Frame] = (),
    dead: str = "",
    tasks: tuple[str, ...] = (),
) -> Graph:
    """The graph of processes that wait: (role, site, text of the wait)."""
    snapshots = tuple(
        Snapshot(role, 1, (), (Wait(1, site, text=text, since=500 * MS),), tasks) for role, site, text in waits
    )
    look = Look(900 * MS, 901 * MS, snapshots)
    roles = ("client", "dp0.rank0", "dp0.rank1", "dp0.rank2")
    made = history(
        [mark(1, "request.sent", number=0), *events],
        frames=frames,
        tp=3,
        look=DoubleLook(look, Outsiders(), look, 30_000 * MS),
        processes=[
            msgspec.structs.replace(process(role, -9 if role == dead else None), pid=pid)
            for pid, role in enumerate(roles)
        ],
    )
    plan = msgspec.structs.replace(made.plan, engine=EngineOptions(relay=relay))
    return Graph(msgspec.structs.replace(made, plan=plan), ENGINE)


def edge(of: Graph, role: str) -> tuple[str, tuple[str, ...], str]:
    (node,) = of._nodes[role]
    return node.edge.waits_for, node.edge.ended_by, node.edge.why


@pytest.mark.parametrize(
    ("role", "site", "text", "waits_for", "ended_by"),
    [
        ("dp0.rank1", "relay.poll", "fd|relay.1", "the go frame on relay", ("dp0.rank0",)),
        ("dp0.rank1", "relay.recv", "", "the go frame on relay", ("dp0.rank0",)),
        ("dp0.rank0", "control.poll", "fd|control", "message 1 on control", ("dp0.rank1", "dp0.rank2")),
        (
            "dp0.rank0",
            "control.poll",
            "fd|control|input",
            "message 1 on control or message 1 on input",
            ("dp0.rank1", "dp0.rank2", "client"),
        ),
        ("dp0.rank0", "control.poll", "fd|control|relay.2.send", "message 1 on control or room on relay.2", None),
        ("dp0.rank0", "relay.poll", "relay.2.send", "room on relay.2", ("dp0.rank2",)),
        ("dp0.rank0", "relay.send", "relay.1.send", "room on relay.1", ("dp0.rank1",)),
        ("dp0.rank1", "control.send", "control.send", "room on control", ("dp0.rank0",)),
    ],
)
def test_who_could_end_a_wait(
    role: str, site: str, text: str, waits_for: str, ended_by: tuple[str, ...] | None
) -> None:
    found = graph([(role, site, text)], [joined("dp0.rank1")])
    what, enders, why = edge(found, role)
    assert (what, enders) == (waits_for, ended_by or ("dp0.rank1", "dp0.rank2"))
    assert why == ("nothing left takes one" if what.startswith("room") else "nothing left can send it")
    assert found.doubts == []


def test_a_subscription_comes_from_the_ranks() -> None:
    found = graph([("dp0.rank0", "control.poll", "fd|control|relay")], relay="subscribed")
    assert edge(found, "dp0.rank0")[:2] == (
        "message 1 on control or a subscription on relay",
        ("dp0.rank1", "dp0.rank2"),
    )


def test_a_wait_for_nothing_known_is_a_doubt() -> None:
    assert graph([("dp0.rank1", "fd.poll", "fd")]).doubts


def test_what_comes_next_on_the_relay_follows_from_what_has_come() -> None:
    wait = ("dp0.rank1", "relay.poll", "fd|relay.1")
    opened = [joined("dp0.rank1"), got(3, "dp0.rank1", "go")]
    assert edge(graph([wait], opened), "dp0.rank1")[0] == "frame 1 on relay"
    steps = [*opened, got(4, "dp0.rank1", "step"), got(5, "dp0.rank1", "step")]
    assert edge(graph([wait], steps), "dp0.rank1")[0] == "frame 3 on relay"
    hellos = [joined("dp0.rank1"), sent(2, "hello"), got(3, "dp0.rank1", "hello")]
    assert edge(graph([wait], hellos, relay="handshake"), "dp0.rank1")[0] == "the end of the handshake"
    assert edge(graph([wait], relay="unsynchronised"), "dp0.rank1")[0] == "frame 1 on relay"


STUCK = [
    CLIENT,
    ("dp0.rank0", "control.poll", "fd|control|input"),
    ("dp0.rank1", "relay.poll", "fd|relay.1"),
    ("dp0.rank2", "relay.poll", "fd|relay.2"),
]
OPENED = [joined("dp0.rank1"), joined("dp0.rank2"), got(3, "dp0.rank1", "go"), got(3, "dp0.rank2", "go")]
STEPS = [sent(10, "step", "relay.1"), sent(11, "step", "relay.2"), got(12, "dp0.rank1", "step")]


def test_a_frame_that_was_sent_to_one_rank_is_lost_for_it_alone() -> None:
    found = graph(STUCK, [*OPENED, *STEPS])
    blame = found.blame(())
    assert blame.sentence == "Rank 0 sent frame 1, and it never reached rank 2."
    assert blame.waits[0].role == "dp0.rank2"
    assert graph(STUCK, [*OPENED, STEPS[0], STEPS[2]]).lost() is None


@pytest.mark.parametrize(
    ("fate", "words"), [("dropped", "and it was dropped on its way to rank 2"), ("held", "and it is held on its way")]
)
@pytest.mark.parametrize(("kind", "name"), [("step", "frame 1"), ("go", "the go frame")])
def test_a_frame_that_the_proxy_kept_is_blamed_by_its_name(fate: str, words: str, kind: str, name: str) -> None:
    cut = Frame(12 * MS, "relay", "dp0.rank2", "to_connector", 1, kind, nth=1, fate=fate)
    opened = OPENED if kind == "step" else OPENED[:3]
    events = [*opened, *STEPS] if kind == "step" else [*opened, sent(2, "go", "relay.1"), sent(2, "go", "relay.2")]
    sentence = graph(STUCK, events, frames=[cut]).blame(()).sentence
    assert sentence.startswith(f"Rank 0 sent {name}, {words}")


def test_a_rank_that_waits_for_a_dead_one_is_why() -> None:
    found = graph(STUCK[:1] + STUCK[2:], OPENED, dead="dp0.rank0")
    assert edge(found, "dp0.rank1")[2] == "dp0.rank0 is dead"
    assert "the client waits for message 1 on output, which only rank 0 can end" in found.blame(()).sentence.lower()


@pytest.mark.parametrize(
    ("site", "text", "waits_for", "ended_by"),
    [
        ("thread.wait", "room in a queue in put", "room in a queue in put", ("dp0.rank1",)),
        ("store.get", "key", "what the others put in the store", ("dp0.rank0", "dp0.rank2")),
        ("group.form", "tp", "the others, to form the group", ("dp0.rank0", "dp0.rank2")),
        ("fd.poll", "event", "a word of another thread", ("dp0.rank1",)),
        ("fd.poll", "pipe", "a word on a pipe", ("client", "dp0.rank0", "dp0.rank2")),
        ("fd.poll", "pid:3|startup", "the end of rank 2 or message 1 on startup", ("dp0.rank2", "client")),
        ("process.wait", "pid:77", "the end of the process 77", ("process 77",)),
        ("file.lock", "a locked file", "a locked file", ("client", "dp0.rank0", "dp0.rank2")),
    ],
)
def test_who_could_end_a_wait_for_threads_ranks_and_the_system(
    site: str, text: str, waits_for: str, ended_by: tuple[str, ...]
) -> None:
    found = graph([("dp0.rank1", site, text)])
    assert edge(found, "dp0.rank1")[:2] == (waits_for, ended_by)
    assert found.doubts == []


def test_a_loop_without_a_socket_call_waits_for_what_its_tasks_await() -> None:
    found = graph([("client", "loop.select", "")], tasks=("main: run > call_utility awaits a future",))
    assert edge(found, "client")[:2] == ("a future in call_utility", ("client",))
    assert found.blame(()).sentence == (
        "The client waits for a future in call_utility: no task of its loop is left to set it."
    )


def test_a_watch_is_nobody_who_waits() -> None:
    thread = mark(1, "thread", value=1, text="lifeline")
    named = msgspec.structs.replace(thread, role="dp0.rank1")
    assert graph([("dp0.rank1", "fd.poll", "pipe")], [named])._nodes == {}


def test_a_rank_that_met_the_dead_one_before_needs_it_no_more() -> None:
    waits = [CLIENT, ("dp0.rank0", "store.get", "key")]
    blame = graph(waits, dead="dp0.rank2").blame(())
    assert blame.sentence == (
        "Rank 0 waits for what the others put in the store, which only rank 2 can end, and rank 2 is dead (killed by "
        "signal 9)."
    )
    formed = [call(5, "dp0.rank2", "group.form")]
    assert edge(graph(waits, formed, dead="dp0.rank2"), "dp0.rank0")[1] == ("dp0.rank1",)


def test_one_of_several_who_could_send_is_not_blamed_for_being_dead() -> None:
    waits = [CLIENT, ("dp0.rank0", "control.poll", "fd|control|input"), ("dp0.rank1", "relay.poll", "fd|relay.1")]
    assert "is dead" not in graph(waits, dead="dp0.rank2").blame(()).sentence
