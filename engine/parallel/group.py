"""The ranks' gloo group and every wait for a collective.

A gloo collective whose peer never comes is waited for until gloo's own timeout, after which the group is dead. So
gloo's timeout is set far beyond any deadline, and :func:`wait_for` waits in short slices: a slice that runs out leaves
the operation and the group intact, and between slices there is time to look at the lifeline and at the clock.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist

from engine.clock import Deadline, now
from engine.config import LONGEST
from engine.errors import DeadlineExceeded, PeerFailed
from engine.lifeline import Lifeline
from engine.relay.frames import Place

SLICE = timedelta(milliseconds=50)
GLOO_TIMEOUT = timedelta(seconds=LONGEST, days=1)


class TensorGroup:
    """The `tp` group of one rank: collectives with an end.

    `bounded` False is for a relay that waits without slices and deadlines by design. `beat` is called after each
    collective, as a sign of progress. With one rank there is no group and every collective is the identity.
    """

    def __init__(
        self,
        rank: int,
        roles: list[str],
        lifeline: Lifeline,
        *,
        bounded: bool,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self.rank = rank
        self.size = len(roles)
        self.roles = roles
        self._lifeline = lifeline
        self._bounded = bounded
        self._beat = beat
        self._deadline = Deadline.never()
        self._what = "start-up"
        self._count = 0
        self._began_at = 0.0
        self._inside = False

    @classmethod
    def alone(cls, role: str) -> TensorGroup:
        """A group of one. It never waits, so it has no use for a lifeline."""
        return cls(0, [role], cast(Lifeline, None), bounded=True)

    def form(self, store: str) -> None:
        """Meet the other ranks through the file `store`. The lifeline thread is what bounds this native wait."""
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        with self._lifeline.native():
            # Outside of the try: a disk that fails here is this rank's own affair, and no peer's.
            file = dist.FileStore(store, self.size)  # type: ignore[attr-defined]
            try:
                dist.init_process_group(
                    "gloo",
                    store=file,
                    rank=self.rank,
                    world_size=self.size,
                    timeout=GLOO_TIMEOUT,
                    group_name="tp",
                )
            except RuntimeError as error:
                if not _of_the_group(error):
                    raise
                raise PeerFailed("", f"the group could not be formed: {_first_line(error)}") from error

    def arm(self, deadline: Deadline, what: str) -> None:
        """Bound all collectives from here on by `deadline`; `what` names the occasion in errors."""
        self._deadline = deadline
        self._what = what

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks, in place."""
        if self.size > 1:
            self._run("all_reduce", lambda: dist.all_reduce(tensor, async_op=True))
        self._beat()
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's tensor, in rank order."""
        parts = [tensor] if self.size == 1 else [torch.empty_like(tensor) for _ in range(self.size)]
        if self.size > 1:
            self._run("all_gather", lambda: dist.all_gather(parts, tensor, async_op=True))
        self._beat()
        return parts

    def broadcast(self, tensor: torch.Tensor, root: int) -> torch.Tensor:
        """The tensor of rank `root`, in place."""
        if self.size > 1:
            self._run("broadcast", lambda: dist.broadcast(tensor, src=root, async_op=True))
        self._beat()
        return tensor

    def sum_integers(self, values: list[int]) -> list[int]:
        """Position by position sum over the ranks: one all-reduce of int64."""
        return [int(value) for value in self.all_reduce(torch.tensor(values, dtype=torch.int64))]

    def broadcast_integer(self, value: int, root: int) -> int:
        """The integer of rank `root`: one broadcast of an int64."""
        return int(self.broadcast(torch.tensor(value, dtype=torch.int64), root))

    def close(self) -> None:
        """Leave the group. Safe without one."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def peer_of(self) -> str:
        """The role of the only other rank; empty when there are several, since gloo does not say which one failed."""
        return self.roles[1 - self.rank] if self.size == 2 else ""

    def _run(self, name: str, start: Callable[[], dist.Work | None]) -> None:
        self._count += 1
        self._began_at = now()
        self._inside = True
        what = f"{name} {self._count} of {self._what}"
        try:
            work = start()
        except RuntimeError as error:
            if not _of_the_group(error):
                raise
            raise self._failed(what, error) from error
        if work is None:
            raise PeerFailed("", f"{what}: this rank is not in the group")
        try:
            if self._bounded:
                wait_for(work, self._lifeline, self._deadline)
            else:
                with self._lifeline.native():
                    work.wait()
        except TimeoutError as error:
            raise DeadlineExceeded(
                self.peer_of(), f"{what}: not finished by its deadline, {now() - self._began_at:.2f} s after it began"
            ) from error
        except RuntimeError as error:
            if not _of_the_group(error):
                raise
            raise self._failed(what, error) from error
        self._inside = False

    @property
    def place(self) -> Place:
        """Where this rank is among its collectives."""
        return Place(self._count, self._began_at, self._inside)

    def _failed(self, what: str, error: RuntimeError) -> PeerFailed:
        # gloo only says that somebody has gone; who knows more says so about now.
        self._lifeline.last_word()
        return PeerFailed(self.peer_of(), f"{what} failed: {_first_line(error)}")


def wait_for(work: dist.Work, lifeline: Lifeline, deadline: Deadline) -> None:
    """Wait for a collective in slices of :data:`SLICE`.

    Raises TimeoutError at the deadline, what the lifeline says (except a stop, which waits for the end of the step), or
    the RuntimeError with which the collective itself failed.
    """
    while True:
        try:
            work.wait(SLICE)
            return
        except RuntimeError as error:
            if not _of_the_group(error):
                raise
            # A slice that ran out leaves the work unfinished. A finished one either failed, and waiting again raises
            # what it failed with, or came home between the slice's end and this look.
            if work.is_completed():
                work.wait()
                return
        lifeline.check(stop=False)
        if deadline.expired():
            raise TimeoutError


def _of_the_group(error: RuntimeError) -> bool:
    """Whether gloo or torch's group says so, and not this rank's own code by an error derived from RuntimeError."""
    return type(error) is RuntimeError or isinstance(error, dist.DistError)


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
