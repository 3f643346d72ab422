"""Waits for threads and for the system: each is seen while it lasts, and says what it is for."""

from __future__ import annotations

import fcntl
import os
import queue
import select
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import zmq

from harness.clock import MS, now
from harness.history import Wait
from harness.seam import install, region, zmq_seam
from harness.seam.region import Recorder, Region
from harness.seam.site import Seam, activate
from harness.targets import get

original_sleep = time.sleep
"""Unseen: of two waits either may be the first."""

PATIENCE = 10_000 * MS
"""Nanoseconds after which a wait that is not seen will not be."""


@contextmanager
def blocked(code: Callable[[], object], passing: str = "") -> Iterator[tuple[Wait, ...]]:
    """The waits of a process that runs this code, as soon as it has any but those at the site that it is passing."""
    memory = region.create()
    pid = os.fork()
    if not pid:
        install.install(torch=False)
        activate(Seam(Recorder(memory, 0, "dp0.rank0"), ()))
        zmq_seam.sockets.reset(get("engine"), {})
        try:
            code()
        finally:
            os._exit(0)
    reader, began = Region(memory, 0), now()
    try:
        while now() - began < PATIENCE:
            found = tuple(wait for wait in reader.waits() if wait.site != passing)
            if found:
                break
        yield found
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        reader.close()
        os.close(memory)


def take_a_lock_twice() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def wait_for_an_event() -> None:
    threading.Event().wait()


def wait_for_a_notice() -> None:
    with (condition := threading.Condition()):
        condition.wait(60)


def get_from_an_empty_queue() -> None:
    queue.Queue[int]().get()


def get_from_a_simple_queue() -> None:
    queue.SimpleQueue[int]().get()


def put_into_a_full_queue() -> None:
    full: queue.Queue[int] = queue.Queue(1)
    full.put(1)
    full.put(2)


def join_a_thread() -> None:
    other = threading.Thread(target=original_sleep, args=(60,), name="sleeper")
    other.start()
    other.join()


def poll_a_pipe() -> None:
    poller = select.poll()
    poller.register(os.pipe()[0])
    poller.poll()


def poll_a_process() -> None:
    poller = select.poll()
    poller.register(os.pidfd_open(os.getppid()))
    poller.poll(60_000)


def select_an_event_descriptor() -> None:
    select.select([os.eventfd(0)], [], [])


def poll_a_socket() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.PULL)
    socket.bind("inproc://relay")
    poller = select.poll()
    poller.register(int(socket.get(zmq.FD)), select.POLLIN)
    while True:
        poller.poll()


def wait_for_a_child() -> None:
    pid = os.fork()
    if not pid:
        time.sleep(60)
    os.waitpid(pid, 0)


def lock_a_locked_file() -> None:
    with tempfile.NamedTemporaryFile() as file:
        mine, other = (os.open(file.name, os.O_RDWR) for _ in range(2))
        fcntl.flock(mine, fcntl.LOCK_EX)
        fcntl.flock(other, fcntl.LOCK_EX)


def sleep() -> None:
    time.sleep(60)


@pytest.mark.parametrize(
    ("code", "site", "text"),
    [
        (take_a_lock_twice, "thread.lock", "a lock that thread MainThread holds"),
        (wait_for_an_event, "thread.wait", "an event in wait_for_an_event"),
        (wait_for_a_notice, "thread.wait", "a notice in wait_for_a_notice"),
        (get_from_an_empty_queue, "thread.wait", "an entry in a queue in get_from_an_empty_queue"),
        (get_from_a_simple_queue, "thread.get", "an entry in a queue in get_from_a_simple_queue"),
        (put_into_a_full_queue, "thread.wait", "room in a queue in put_into_a_full_queue"),
        (poll_a_pipe, "fd.poll", "pipe"),
        (poll_a_process, "fd.poll", "pid:"),
        (poll_a_socket, "fd.poll", "relay"),
        (select_an_event_descriptor, "fd.select", "event"),
        (lock_a_locked_file, "file.lock", "a locked file"),
        (sleep, "time.sleep", ""),
    ],
)
def test_a_wait_is_seen_and_says_what_it_is_for(code: Callable[[], object], site: str, text: str) -> None:
    if code is poll_a_process:
        text += str(os.getpid())
    with blocked(code) as waits:
        assert [(wait.site, wait.text) for wait in waits] == [(site, text)]
        ends = waits[0].gives_up
    limited = code in (wait_for_a_notice, poll_a_process, sleep)
    assert (50_000 * MS < ends - now() < 60_000 * MS) if limited else ends == -1


def test_a_join_names_the_thread() -> None:
    with blocked(join_a_thread, passing="thread.wait") as waits:  # until the thread says that it has begun
        assert [(wait.site, wait.text) for wait in waits] == [("thread.join", "the end of thread sleeper")]


def test_a_child_that_has_to_end_is_named_by_its_pid() -> None:
    with blocked(wait_for_a_child) as waits:
        assert [wait.site for wait in waits] == ["process.wait"]
        assert waits[0].text.removeprefix("pid:").isdecimal()


def test_what_is_there_already_is_no_wait() -> None:
    def code() -> None:
        ready: queue.SimpleQueue[int] = queue.SimpleQueue()
        ready.put(1)
        ready.get()
        lock = threading.Lock()
        with lock:
            assert not lock.acquire(False)
        event = threading.Event()
        event.set()
        event.wait()
        sleep()

    with blocked(code) as waits:
        assert [wait.site for wait in waits] == ["time.sleep"], "the first wait that lasts"
