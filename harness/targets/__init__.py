"""Targets: the engines that the harness knows how to start, and what their roles, links and frames are called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Protocol

from msgspec import Struct

from harness.plan import Plan, PlanError
from harness.proxy.records import Kind


class Patience(Struct, frozen=True):
    """Seconds: before the engine is ready, and after."""

    starting: float
    serving: float


class Slice(Struct, frozen=True):
    """Waits that are entered again and again: those at sites that begin with ``sites``, every ``every`` seconds.

    ``limit``: so many seconds after it began such a wait ends by itself; None for never.
    """

    sites: str
    every: float
    limit: float | None


class Bounds(Struct, frozen=True):
    """Seconds that the engine takes at most by its own declared limits, the machine's stalls apart.

    ``start``: from the constructor's call until it is ready, or says why not. ``step``: without any progress while
    something is owed, until its users are told; None where it waits for ever by design. ``notice``: from a death to the
    error of everybody who waits. ``leave``: for what is left to be gone then. ``stop``: for an orderly shutdown.
    """

    start: float
    step: float | None
    notice: float
    leave: float
    stop: float


class Target(Protocol):
    """One engine under test. Everything here is pure and free of torch, but for `client` and `preload`."""

    name: str
    client: str
    """``module:function`` of the client program: called with the plan's JSON, the engine's folder, a factory."""
    reference: str
    """``module:function`` that writes reference tokens to a descriptor; see `targets.engine_client.reference`."""
    watches: ClassVar[dict[str, str]]
    """Threads that wait only for the death of a process or for word of it, by name, and for what they wait.

    A proxy gets two functions of the target's module by name: ``classify`` and ``foreign``.
    """

    def check(self, plan: Plan) -> None:
        """Raises PlanError where the plan asks for what the target does not have."""
        ...

    def links(self, plan: Plan) -> tuple[str, ...]:
        """The links of a plan's engine that can be observed."""

    def relays(self) -> tuple[str, ...]:
        """The relay strategies that can be named in a plan."""
        ...

    def safe_relays(self) -> tuple[str, ...]:
        """Those of the target's own that must never wedge, whatever breaks."""
        ...

    def link_of(self, endpoint: str) -> str:
        """The link that an endpoint carries."""
        ...

    def endpoint(self, link: str, connector: str, plan: Plan) -> str:
        """The name of the endpoint below the engine's folder where the binder meets this connector of a link.

        Of the link ``store``: the rendezvous store's file.
        """
        ...

    def leave_lock(self, folder: Path) -> None:
        """Leave in a folder what a killed engine leaves beside its sockets, by which the next one knows its own."""
        ...

    def group_name(self, description: str) -> str:
        """The short name of a process group, from torch's description of it."""
        ...

    def classify(self, link: str, direction: str, frames: Sequence[bytes]) -> Kind:
        """The kind of a message. ``direction`` is send or recv at the seam, to_connector or to_binder in a proxy."""
        ...

    def frame(self, link: str, name: str, plan: Plan) -> str:
        """The kind that a plan's word stands for on a link of this plan: ``join`` is SUBSCRIBE on PUB/SUB.

        It is READY where nobody subscribes: the connector's last word of the connection's own handshake.
        """
        ...

    def foreign(self, link: str, frames: Sequence[bytes]) -> list[bytes]:
        """The parts of a message as another run of the engine would have sent them: everything right but the run."""
        ...

    def binder(self, link: str) -> str:
        """The role that binds a link."""
        ...

    def connectors(self, link: str, plan: Plan) -> tuple[str, ...]:
        """The roles that connect to a link."""
        ...

    def exit_meaning(self, status: int) -> str:
        """What an exit status of one of the target's processes says, in a few words."""
        ...

    def left_for_a_peer(self, status: int) -> bool:
        """Whether a process that left with this status did so by itself because another one had died or failed."""
        ...

    def patience(self, plan: Plan) -> Patience:
        """For how long mild faults, all together, may keep this plan's engine waiting without an excuse to give up."""
        ...

    def slices(self, plan: Plan) -> tuple[Slice, ...]:
        """The waits that the target makes in slices, as it runs this plan."""
        ...

    def bounds(self, plan: Plan) -> Bounds:
        """What this plan's engine promises about time."""
        ...

    def tells_of_time(self, cause: str) -> bool:
        """Whether the cause of an error says that something came late or not at all."""
        ...

    def left_at_a_deadline(self, status: int) -> bool:
        """Whether a process that left with this status did so because it had waited as long as it may."""
        ...

    def left_in_order(self, status: int) -> bool:
        """Whether a process that left with this status did so because it was asked to."""
        ...

    def may_lose(self, link: str, plan: Plan) -> bool:
        """Whether a link by its kind may lose a frame that nobody has taken from it."""
        ...

    def promises(self, relay: str) -> str:
        """``notices`` if the relay promises an error for a lost frame, ``nothing`` if it may wait for ever."""
        ...


def get(name: str) -> Target:
    """The target of that name. Raises PlanError."""
    if name != "engine":
        raise PlanError(f"target: no target '{name}'; there is engine")
    from harness.targets.engine import ENGINE

    return ENGINE


def preload() -> None:
    """Imports, in a fork parent, all that the processes of every target will need."""
    from harness.targets import engine

    engine.preload()
