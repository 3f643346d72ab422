"""Passing a site: occurrences, and the fault that acts at exactly one of them."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Iterator

import pytest

from harness.faults import Delay, Fault, Hold, InjectedError, Kill, Raise, Squat, Stop, Terminate
from harness.history import Event
from harness.instant import Instant
from harness.seam import region
from harness.seam.region import Recorder, Region
from harness.seam.site import Outlets, Seam


class Desk:
    """One seam and both sides of its memory and of its signals."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self.heard, self._says = os.pipe()
        self.region = Region(memory, 0)
        self.squatted: list[str] = []

    def seam(self, *faults: Fault, role: str = "dp0.rank0") -> Seam:
        outlets = Outlets(signals=self._says, calls=self._says, squat=self._squat)
        return Seam(Recorder(self._memory, 0, role), faults, outlets)

    def _squat(self, link: str) -> bool:
        self.squatted.append(link)
        return link == "relay"

    def events(self, site: str) -> list[Event]:
        return [event for event in self.region.events() if event.site == site]

    def close(self) -> None:
        os.close(self.heard)
        os.close(self._says)


@pytest.fixture
def desk() -> Iterator[Desk]:
    memory = region.create()
    made = Desk(memory)
    yield made
    made.close()
    os.close(memory)


def delay(at: str) -> Delay:
    return Delay(Instant.parse(at), 0.001)


def test_occurrences_count_per_site_and_kind_and_only_what_succeeded(desk: Desk) -> None:
    seam = desk.seam()
    for kind in ("hello", "hello", "done"):
        seam.before("relay.send", kind)
        seam.after("relay.send", kind)
    seam.before("relay.send", "step")
    seam.failed("relay.send", "step", error=OSError("no"))
    seam.before("relay.send", "step")
    seam.after("relay.send", "step")
    passed = [(event.side, event.kind, event.n, event.ok) for event in desk.events("relay.send")]
    assert passed == [
        ("before", "hello", 1, True),
        ("after", "hello", 1, True),
        ("before", "hello", 2, True),
        ("after", "hello", 2, True),
        ("before", "done", 1, True),
        ("after", "done", 1, True),
        ("before", "step", 1, True),
        ("after", "step", 0, False),
        ("before", "step", 1, True),
        ("after", "step", 1, True),
    ]


@pytest.mark.parametrize(
    ("at", "calls"),
    [
        ("relay.send[hello]#2:after", 2),
        ("relay.send[hello]#2:before", 1),
        ("relay.send#3:after", 3),
        ("relay.send[done]#1:after", 3),
        ("relay.send[done]:before", 2),
    ],
)
def test_a_fault_fires_at_its_instant_and_once(desk: Desk, at: str, calls: int) -> None:
    seam = desk.seam(delay(f"dp0.rank0:{at}"))
    fired_after = None
    for done, kind in enumerate(("hello", "hello", "done", "hello", "done")):
        seam.before("relay.send", kind)
        if desk.events("fault.fired") and fired_after is None:
            fired_after = done
        seam.after("relay.send", kind)
        if desk.events("fault.fired") and fired_after is None:
            fired_after = done + 1
    assert fired_after == calls
    assert [len(desk.events(f"fault.{word}")) for word in ("armed", "reached", "fired")] == [1, 1, 1]


def test_a_fault_of_another_role_or_site_is_not_armed_here(desk: Desk) -> None:
    seam = desk.seam(delay("dp0.rank1:relay.send#1:after"), delay("dp0.rank0:relay.recv#1:after"))
    seam.before("relay.send", "hello")
    seam.after("relay.send", "hello")
    assert [event.number for event in desk.events("fault.armed")] == [1]
    assert desk.events("fault.fired") == []


def test_a_hold_is_signalled_when_its_release_instant_is_passed(desk: Desk) -> None:
    until = Instant.parse("dp0.rank0:relay.send[step]#1:after")
    seam = desk.seam(delay("dp0.rank0:start"), Hold(link="relay", frame="join", victim="dp0.rank1", until=until))
    seam.before("relay.send", "step")
    os.set_blocking(desk.heard, False)
    with pytest.raises(BlockingIOError):
        os.read(desk.heard, 4)
    seam.after("relay.send", "step")
    assert os.read(desk.heard, 100) == (1).to_bytes(4, "little")


def test_start_and_exit_are_instants(desk: Desk) -> None:
    seam = desk.seam(delay("dp0.rank0:start"))
    seam.life("start")
    seam.life("exit", 11)
    assert len(desk.events("fault.fired")) == 1
    assert [event.value for event in desk.events("exit")] == [11]


BIND = Instant.parse("dp0.rank0:relay.bind#1:before")


def counts(desk: Desk) -> list[int]:
    return [len(desk.events(f"fault.{word}")) for word in ("armed", "reached", "fired")]


@pytest.mark.parametrize(
    ("fault", "number"),
    [
        (Kill(BIND), signal.SIGKILL),
        (Terminate(BIND), signal.SIGTERM),
        (Terminate(BIND, "INT"), signal.SIGINT),
        (Terminate(BIND, "ABRT"), signal.SIGABRT),
    ],
    ids=str,
)
def test_a_process_that_a_fault_ends_has_noted_its_own_death(desk: Desk, fault: Fault, number: int) -> None:
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        faulthandler.disable()
        seam = desk.seam(fault)
        seam.before("relay.bind")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -number
    assert counts(desk) == [1, 1, 1]


def test_an_error_is_raised_out_of_the_call_after_every_other_fault_of_the_instant(desk: Desk) -> None:
    seam = desk.seam(Raise(BIND), delay("dp0.rank0:relay.bind#1:before"))
    with pytest.raises(InjectedError, match=r"raise an error in dp0\.rank0 at dp0\.rank0:relay\.bind#1:before"):
        seam.before("relay.bind")
    assert counts(desk) == [2, 2, 2]
    seam.before("relay.bind")
    assert counts(desk) == [2, 2, 2]


def test_a_stopped_process_has_told_the_lane_stands_at_its_instant_and_goes_on_there(desk: Desk) -> None:
    pid = os.fork()
    if not pid:
        seam = desk.seam(delay("dp0.rank1:start"), Stop(BIND))
        seam.before("relay.bind")
        seam.after("relay.bind")
        os._exit(0)
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
    assert os.read(desk.heard, 100) == (1).to_bytes(4, "little")
    assert counts(desk) == [1, 1, 1]
    (held,) = desk.region.waits()
    assert (held.site, held.held, held.gives_up) == ("fault.stop", True, -1)
    assert desk.events("fault.over") == []
    os.kill(pid, signal.SIGCONT)
    assert os.waitpid(pid, 0)[1] == 0
    assert [event.side for event in desk.events("relay.bind")] == ["before", "after"]
    assert len(desk.events("fault.over")) == 1
    assert desk.region.waits() == ()


@pytest.mark.parametrize(("link", "fired"), [("relay", 1), ("input", 0)])
def test_a_squatter_counts_only_where_something_was_bound(desk: Desk, link: str, fired: int) -> None:
    seam = desk.seam(Squat(BIND, link))
    seam.before("relay.bind")
    assert desk.squatted == [link]
    assert counts(desk) == [1, 1, fired]
