"""What this process holds: descriptors, threads of Python and of ZMQ."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Census:
    """What was there at one moment."""

    descriptors: frozenset[tuple[str, str]]
    threads: frozenset[threading.Thread]
    zmq_threads: int

    @classmethod
    def now(cls) -> Census:
        descriptors = set()
        for number in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # the listing's own
                descriptors.add((number, os.readlink(f"/proc/self/fd/{number}")))
        zmq_threads = 0
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):
                zmq_threads += (task / "comm").read_text().startswith("ZMQbg")
        return cls(frozenset(descriptors), frozenset(threading.enumerate()), zmq_threads)

    def beyond(self, before: Census) -> list[str]:
        """What was not there before."""
        descriptors = [f"{number} -> {target}" for number, target in sorted(self.descriptors - before.descriptors)]
        threads = [thread.name for thread in self.threads - before.threads]
        more = self.zmq_threads - before.zmq_threads
        return descriptors + threads + ([f"{more} threads of ZMQ"] if more > 0 else [])
