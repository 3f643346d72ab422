"""Relays and control links of several ranks in one process: real sockets, real waits, no processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

from engine import relay
from engine.clock import Deadline
from engine.control import Control
from engine.lifeline import Lifeline, Reporter
from engine.relay import frames

EPOCH = 0x1234_5678_9ABC_DEF0
DIGEST = "0123456789abcdef"


class QuietLifeline(Lifeline):
    """A lifeline on which nothing comes, without the thread that could end this process."""

    def _watch(self) -> None:
        pass


class Alone:
    """A group in which every rank's sum is all ones: the others have agreed."""

    place = frames.Place(0, 0.0, False)

    def arm(self, deadline: Deadline, what: str) -> None:
        """Nothing is waited for."""

    def sum_integers(self, values: list[int]) -> list[int]:
        return [1] * len(values)

    def peer_of(self) -> str:
        return ""


class Place:
    """Everything that ranks of one engine have in common."""

    def __init__(self, folder: Path, size: int) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.roles = [f"dp0.rank{rank}" for rank in range(size)]
        self._folder = folder
        self._pipes: list[int] = []

    def lifeline(self) -> QuietLifeline:
        read, write = os.pipe()
        self._pipes += [read, write]
        never = Deadline.never()
        return QuietLifeline(
            read, Reporter(write), role="dp0.rank0", startup=never, stop_grace=1.0, remove_on_orphan=None
        )

    def address(self, link: str) -> str:
        return f"ipc://{self._folder}/{link}"

    def control(self, rank: int, *, epoch: int = EPOCH, digest: str = DIGEST) -> Control:
        made = Control(self.context, rank, self.roles, epoch, digest, lambda: frames.Place(0, 0.0, False))
        if rank == 0:
            made.open(self.address("control"))
        else:
            made.connect(self.address("control"))
        return made

    def relay(self, name: str, rank: int, *, high_water: int = 1000, step_limit: float = 20.0) -> relay.Relay:
        """One end, bound or connected, but not joined."""
        lifeline = self.lifeline()
        seat = relay.RelaySeat(
            rank=rank,
            roles=self.roles,
            address=self.address,
            epoch=EPOCH,
            high_water=high_water,
            handshake_limit=5.0,
            step_limit=step_limit,
            context=self.context,
            group=Alone(),  # type: ignore[arg-type]
            lifeline=lifeline,
            control=self.control(rank),
        )
        made = relay.create(name, seat)
        if rank == 0:
            made.open()
        else:
            made.connect()
        return made

    def close(self) -> None:
        self.context.destroy(linger=0)
        for fd in self._pipes:
            os.close(fd)


@contextmanager
def place(folder: Path, size: int) -> Iterator[Place]:
    """A place that is left without a trace."""
    made = Place(folder, size)
    try:
        yield made
    finally:
        made.close()


def within(call: Callable[[], object]) -> Callable[[], BaseException | None]:
    """`call` on a thread of its own; the answer waits for its end and gives the error with which it ended, or None."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def ended() -> BaseException | None:
        thread.join(20)
        if thread.is_alive():
            raise TimeoutError("the call did not end within 20 s")
        return errors[0] if errors else None

    return ended
