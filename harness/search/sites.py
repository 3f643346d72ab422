"""What every run of the engine passes for certain, by its size: the instants and frames that generated faults name.

Kept small on purpose: only what a healthy run of the least work passes every time, so that a fault drawn here fires.
`nowedge sites healthy` shows what a run really passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from harness.instant import Instant, Side

_BOTH: tuple[Side, ...] = ("before", "after")

_OPENINGS = {"handshake": ("hello", "done"), "subscribed": ("go",), "pushpull": ("go",)}
"""What the relay of a strategy carries before the first step, if anything."""


def frames(relay: str) -> tuple[tuple[str, str], ...]:
    """The links and kinds of frame that a strategy sends in every run."""
    opening = _OPENINGS.get(relay, ())
    back = [("control", "join")] if opening else []
    return tuple([("relay", kind) for kind in ("join", *opening, "step")] + back)


@cache
def instants(ranks: int, relay: str, steps: int) -> tuple[Instant, ...]:
    """The instants that a run of ``ranks`` ranks and at least ``steps`` steps passes, in no order of time."""
    return tuple(dict.fromkeys(_passed(ranks, relay, steps)))


def client_instants(steps: int) -> tuple[Instant, ...]:
    """The instants of a run of at least ``steps`` steps at which its client program may be killed."""
    sent = [Instant("client", "input.send", "add", 1, side) for side in _BOTH]
    return (*sent, *(Instant("client", "output.recv", "outputs", n, "after") for n in range(1, steps + 1)))


def late_instants() -> tuple[Instant, ...]:
    """The instants of the demand at the end of a run: two calls, one after the other."""
    return tuple(Instant("dp0.rank0", "input.recv", "utility", n, "after") for n in (1, 2))


def _passed(ranks: int, relay: str, steps: int) -> Iterator[Instant]:
    roles = [f"dp0.rank{rank}" for rank in range(ranks)]
    for role in roles:
        yield Instant(role, "start")
    # The output of the first step exists for one token as for six.
    yield Instant(roles[0], "output.send", None, 1, "before")
    yield Instant(roles[0], "output.send", None, 1, "after")
    if ranks == 1:
        return
    for link in ("control", "relay"):
        yield from _sides(roles[0], f"{link}.bind")
        for role in roles[1:]:
            yield from _sides(role, f"{link}.connect")
    for role in roles:
        for n in (1, 2):
            yield from _sides(role, "tp.all_reduce", n=n)
    opening = _OPENINGS.get(relay, ())
    if opening:
        for rank, role in enumerate(roles[1:], start=1):
            yield from _sides(role, "control.send", "join")
            yield Instant(roles[0], "control.recv", "join", rank, "after")
    # Where each rank has a connection of its own, a frame for all is sent once for each.
    copies = ranks - 1 if relay == "pushpull" else 1
    for kind, count in [*((kind, 1) for kind in opening), ("step", certain_steps(relay, steps))]:
        for n in range(1, count * copies + 1):
            yield from _sides(roles[0], "relay.send", kind, n)
        for n in range(1, count + 1):
            for role in roles[1:]:
                yield Instant(role, "relay.recv", kind, n, "after")


def certain_steps(relay: str, steps: int) -> int:
    """How many step frames the relay carries for certain in a run of at least ``steps`` steps.

    The relay as it was before the handshake carries requests, not steps, and one is certain.
    """
    return steps if relay in _OPENINGS else 1


def _sides(role: str, site: str, kind: str | None = None, n: int = 1) -> Iterator[Instant]:
    for side in _BOTH:
        yield Instant(role, site, kind, n, side)
