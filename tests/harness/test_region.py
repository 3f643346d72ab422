"""The recorder: what is written inside can be read outside, also after SIGKILL in the middle of everything."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from harness.clock import now
from harness.seam import region
from harness.seam.region import MAX_EVENTS, Recorder, Region


@pytest.fixture
def memory() -> Iterator[int]:
    fd = region.create()
    yield fd
    os.close(fd)


def test_events_come_back_as_they_were_written(memory: int) -> None:
    recorder, reader = Recorder(memory, 1, "dp0.rank1"), Region(memory, 1)
    recorder.event(7, "relay.recv", "after", "step", 2, 3, 4, 5, text="r0")
    recorder.event(8, "tp.all_reduce", "before", ok=False)
    first, second = reader.events()
    assert (first.t, first.role, first.site, first.side, first.kind) == (7, "dp0.rank1", "relay.recv", "after", "step")
    assert (first.n, first.number, first.value, first.size, first.ok, first.text) == (2, 3, 4, 5, True, "r0")
    assert (second.site, second.kind, second.number, second.ok) == ("tp.all_reduce", "", -1, False)
    assert list(reader.events(start=1)) == [second]


def test_roles_do_not_share_a_region(memory: int) -> None:
    Recorder(memory, 0, "client").event(1, "a.b", "mark")
    Recorder(memory, 1, "dp0.rank0")
    assert [event.role for event in Region(memory, 0).events()] == ["client"]
    assert list(Region(memory, 1).events()) == []


def test_events_survive_sigkill_at_any_moment(memory: int) -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        recorder = Recorder(memory, 0, "client")
        for n in range(MAX_EVENTS):
            recorder.event(now(), f"site.{n % 50}", "after", n=n + 1)
            if n == 500:
                os.write(writing, b"x")
        os._exit(0)
    os.read(reading, 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(reading)
    os.close(writing)
    events = list(Region(memory, 0).events())
    assert len(events) > 500
    assert [event.n for event in events] == list(range(1, len(events) + 1))
    assert all(event.site == f"site.{(event.n - 1) % 50}" for event in events)


def test_a_full_region_counts_what_it_loses(memory: int) -> None:
    recorder, reader = Recorder(memory, 0, "client"), Region(memory, 0)
    for _ in range(MAX_EVENTS + 3):
        recorder.event(1, "a.b", "mark")
    assert reader.lost == 3
    assert sum(1 for _ in reader.events()) == MAX_EVENTS


def test_threads_write_at_once_without_losing_an_event(memory: int) -> None:
    recorder, reader = Recorder(memory, 0, "client"), Region(memory, 0)

    def write(k: int) -> None:
        for n in range(2000):
            recorder.event(1, f"t{k}.x", "mark", n=n)

    threads = [threading.Thread(target=write, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = list(reader.events())
    assert len(events) == 8000
    for k in range(4):
        assert [event.n for event in events if event.site == f"t{k}.x"] == list(range(2000))


def test_a_wait_is_seen_while_it_lasts(memory: int) -> None:
    recorder, reader = Recorder(memory, 0, "dp0.rank1"), Region(memory, 0)
    assert reader.waits() == ()
    recorder.wait(10, "relay.recv", "step", 4, gives_up=99, text="relay", held=True)
    (seen,) = reader.waits()
    assert (seen.site, seen.kind, seen.number, seen.since, seen.gives_up) == ("relay.recv", "step", 4, 10, 99)
    assert (seen.text, seen.held, seen.sliced, seen.tid) == ("relay", True, False, threading.get_native_id())
    recorder.done()
    assert reader.waits() == ()


def test_the_same_wait_entered_again_without_progress_is_one_sliced_wait(memory: int) -> None:
    recorder, reader = Recorder(memory, 0, "dp0.rank1"), Region(memory, 0)
    recorder.wait(10, "tp.all_reduce", number=4)
    recorder.done()
    recorder.wait(20, "tp.all_reduce", number=4)
    assert [(seen.since, seen.sliced) for seen in reader.waits()] == [(10, True)]
    recorder.done()
    recorder.progress()
    recorder.wait(30, "tp.all_reduce", number=4)
    assert [(seen.since, seen.sliced) for seen in reader.waits()] == [(30, False)]
    assert reader.progress == 1


def test_names_outgrow_their_table_without_harm(memory: int) -> None:
    recorder, reader = Recorder(memory, 0, "client"), Region(memory, 0)
    for n in range(3000):
        recorder.event(n, "a.b", "mark", text=f"{n:0100d}")
    events = list(reader.events())
    assert len(events) == 3000
    assert events[0].text == f"{0:0100d}"
    assert events[-1].site == "a.b"


def test_a_dump_is_replaced_as_a_whole(memory: int) -> None:
    recorder, reader = Recorder(memory, 0, "client"), Region(memory, 0)
    assert reader.dump() == b""
    recorder.dump(b'{"tasks": []}')
    assert reader.dump() == b'{"tasks": []}'
    recorder.dump(b"{}")
    assert reader.dump() == b"{}"


def test_a_word_that_is_the_role_s_own_name_is_not_lost(memory: int) -> None:
    Recorder(memory, 2, "client").event(1, "left", "mark", kind="client", text="client")
    region = Region(memory, 2)
    (event,) = region.events()
    assert (event.role, event.kind, event.text) == ("client", "client", "client")
    region.close()
