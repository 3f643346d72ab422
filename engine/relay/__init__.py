"""How rank 0 tells the other ranks what each iteration is made of.

A strategy registers itself by name; the engine's configuration chooses one. A rank creates its strategy once and uses
it in this order: `open` (rank 0, before the group is formed), `connect` (ranks >= 1, after it), `join` (all), then one
`lead` (rank 0) or `follow` (ranks >= 1) per iteration, at the end `stop` or `fail` (rank 0) and `close` (all).

This package does not import torch: collectives come from the group that a strategy is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

import zmq

from engine.clock import Deadline

if TYPE_CHECKING:
    from engine.control import Control
    from engine.lifeline import Lifeline
    from engine.parallel.group import TensorGroup
    from engine.relay.frames import Fail


@dataclass(frozen=True, slots=True)
class RelaySeat:
    """A rank's place at the relay: who it is, where to meet, and what it may use.

    `address` gives the ZMQ address of a link by its name; `epoch` is the run's random 64-bit number; both limits are in
    seconds; `control` is the way back to rank 0, open before the relay is.
    """

    rank: int
    roles: list[str]
    address: Callable[[str], str]
    epoch: int
    high_water: int
    handshake_limit: float
    step_limit: float | None
    context: zmq.Context[zmq.Socket[bytes]]
    group: TensorGroup
    lifeline: Lifeline
    control: Control

    @property
    def role(self) -> str:
        return self.roles[self.rank]

    @property
    def size(self) -> int:
        return len(self.roles)


@dataclass(frozen=True, slots=True)
class JoinReport:
    """How the start went: ranks that have joined besides rank 0, rounds taken."""

    joined: int
    rounds: int


class Relay(Protocol):
    """One rank's end of the relay."""

    unbounded: ClassVar[bool]
    """Whether the strategy waits without deadlines by design."""

    def __init__(self, seat: RelaySeat) -> None: ...

    def open(self) -> None:
        """Rank 0: bind."""

    def connect(self) -> None:
        """Rank k: connect and subscribe."""

    def join(self, startup: Deadline) -> JoinReport:
        """Return when every rank can hear rank 0; raise if that is not so in time."""

    def lead(self, raws: list[bytes], *, idle: bool) -> None:
        """Rank 0, once per iteration: tell the raw request messages of it. `idle`: nothing was under way before."""

    def follow(self, *, idle: bool) -> list[bytes]:
        """Rank k, once per iteration: the raw request messages of it. Raises StopRequested when rank 0 stops."""

    def stop(self, *, idle: bool) -> None:
        """Rank 0: tell all ranks to leave."""

    def fail(self, what: Fail) -> None:
        """Rank 0: tell all ranks, as well as it can be done, that the engine fails."""

    def close(self) -> None:
        """Close every socket; what :meth:`stop` or :meth:`fail` said still goes out, within a bound."""


Strategy = TypeVar("Strategy", bound=type[Relay])

_strategies: dict[str, type[Relay]] = {}


def register(name: str) -> Callable[[Strategy], Strategy]:
    """Class decorator: make a strategy known under `name`."""

    def add(strategy: Strategy) -> Strategy:
        _strategies[name] = strategy
        return strategy

    return add


def names() -> list[str]:
    """All registered strategies."""
    return sorted(_strategies)


def strategy(name: str) -> type[Relay]:
    """The strategy class of that name. Raises KeyError for an unknown one."""
    return _strategies[name]


def create(name: str, seat: RelaySeat) -> Relay:
    """One rank's end of the strategy `name`."""
    return _strategies[name](seat)


from engine.relay import handshake, pushpull, subscribed, unsynchronised  # noqa: E402, F401  (they register themselves)
