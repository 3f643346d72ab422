"""Calls that run on every rank: the methods that can be called so, and how their results come together.

Every rank gets the call with the iteration's messages and runs it. Rank k sends its result to rank 0 over `control`;
rank 0 waits for all of them, until the step's deadline. Every rank counts the calls alike and a result carries its
call's number, so none is ever taken for that of another call.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import zmq

from engine.clock import Deadline, now
from engine.codec import Decoder, Encoder
from engine.control import Control
from engine.errors import DeadlineExceeded
from engine.lifeline import Lifeline
from engine.methods import Methods, attempt, require_sendable
from engine.relay.frames import Result

if TYPE_CHECKING:
    from engine.core import EngineCore

WORKER_METHODS = Methods("worker")
"""What `collective_rpc` can call. Each works on its own rank, and decides nothing that the ranks must agree on."""


class Workers(Protocol):
    """One rank's part in calls that run on every rank."""

    @property
    def rank(self) -> int: ...

    @property
    def roles(self) -> list[str]:
        """The roles of all ranks."""

    def arm(self, deadline: Deadline) -> None:
        """Bound all that is waited for from here on."""

    def gather(self, result: Result) -> list[Result]:
        """Give this rank's result of a call. Rank 0 gets those of all ranks, in their order, the others none."""


class LocalWorkers:
    """An engine of one rank."""

    rank = 0

    def __init__(self, role: str) -> None:
        self.roles = [role]

    def arm(self, deadline: Deadline) -> None:
        """Nothing is waited for."""

    def gather(self, result: Result) -> list[Result]:
        return [result]


class RankWorkers:
    """One of several ranks."""

    def __init__(self, rank: int, roles: list[str], control: Control, lifeline: Lifeline) -> None:
        self.rank = rank
        self.roles = roles
        self._control = control
        self._lifeline = lifeline
        self._deadline = Deadline.never()

    def arm(self, deadline: Deadline) -> None:
        self._deadline = deadline

    def gather(self, result: Result) -> list[Result]:
        """Raises :class:`DeadlineExceeded` naming the rank that was waited for, and what the lifeline says."""
        if self.rank > 0:
            self._give(result)
            return []
        began = now()
        while missing := self._control.without_result(result.call):
            if not self._lifeline.wait([self._control.socket], self._deadline, stop=False):
                late = [self.roles[rank] for rank in missing]
                cause = f"collective call {result.call}: no RESULT came from {', '.join(late)} in {now() - began:.2f} s"
                raise DeadlineExceeded(late[0], cause)
            self._control.listen()
        return [result, *self._control.take_results(result.call)]

    def _give(self, result: Result) -> None:
        """Wait while rank 0's queue is full: this rank may be many calls ahead of one that rank 0 waits for."""
        began = now()
        while not self._control.give(result):
            if not self._lifeline.wait([self._control.socket], self._deadline, flag=zmq.POLLOUT, stop=False):
                cause = (
                    f"collective call {result.call}: RESULT was not taken in {now() - began:.2f} s: the queue is full"
                )
                raise DeadlineExceeded(self.roles[0], cause)


def everywhere(core: EngineCore, call: int, name: str, args: Sequence[Any]) -> list[Any]:
    """Run a worker method on every rank, as the collective call of that number.

    Rank 0 gets the results by rank, the others nothing. Raises ValueError there with the role of the first rank that
    failed and what it says, KeyError nowhere: the name must be one of :data:`WORKER_METHODS`.
    """

    def run() -> bytes:
        value = WORKER_METHODS.call(name, core, args)
        require_sendable(value)
        return b"".join(Encoder(None).encode(value))

    workers = core.workers
    content, failure = attempt(run)
    results = workers.gather(Result(workers.rank, call, failure, content or b""))
    for role, result in zip(workers.roles, results, strict=False):
        if result.failure is not None:
            raise ValueError(f"{role}: {result.failure}")
    return [Decoder(object).decode([result.content]) for result in results]


@WORKER_METHODS.register
def rank_info(core: EngineCore) -> dict[str, Any]:
    """Which process this is."""
    return {"role": core.workers.roles[core.workers.rank], "rank": core.workers.rank, "pid": os.getpid()}


@WORKER_METHODS.register
def memory(core: EngineCore) -> dict[str, int]:
    """Bytes that this rank's weights and its key-value cache take."""
    return core.memory.bytes()


@WORKER_METHODS.register
def digest(core: EngineCore) -> int:
    """The fingerprint of all that was decided before this step."""
    return core.digest


@WORKER_METHODS.register
def echo(core: EngineCore, value: Any) -> Any:
    """The argument."""
    return value


@WORKER_METHODS.register
def start_profile(core: EngineCore, directory: str | None = None) -> None:
    """Record what this rank does from now on; a directory that is named now is tried out."""
    core.profiler.start(directory)


@WORKER_METHODS.register
def stop_profile(core: EngineCore, directory: str | None = None) -> str:
    """Write what was recorded into that directory, or the one that was named at the start; the file's path."""
    return core.profiler.stop(directory)
