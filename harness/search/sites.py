"""What every run of the engine passes for certain, by its size: the instants and frames that generated faults name.

Kept small on purpose: only what a healthy run of the least work passes every time, so that a fault drawn here fires.
`nowedge sites healthy` shows what a run really passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from harness.instant import Instant, Side

_BOTH: tuple[Side, ...] = ("before", "after")

_FRAMES = {"handshake": ("join", "hello", "done", "step"), "subscribed": ("join", "step")}
_LEAST = ("join", "step")


def frames(relay: str) -> tuple[str, ...]:
    """The kinds of frame that the relay of a strategy carries in every run."""
    return _FRAMES.get(relay, _LEAST)


@cache
def instants(ranks: int, relay: str, steps: int) -> tuple[Instant, ...]:
    """The instants that a run of ``ranks`` ranks and at least ``steps`` steps passes, in no order of time."""
    return tuple(dict.fromkeys(_passed(ranks, relay, steps)))


def _passed(ranks: int, relay: str, steps: int) -> Iterator[Instant]:
    roles = [f"dp0.rank{rank}" for rank in range(ranks)]
    for role in roles:
        yield Instant(role, "start")
    # The output of the first step exists for one token as for six.
    yield Instant(roles[0], "output.send", None, 1, "before")
    yield Instant(roles[0], "output.send", None, 1, "after")
    if ranks == 1:
        return
    yield from _sides(roles[0], "relay.bind")
    for role in roles[1:]:
        yield from _sides(role, "relay.connect")
    for role in roles:
        for n in (1, 2):
            yield from _sides(role, "tp.all_reduce", n=n)
    for kind in frames(relay):
        if kind == "join":
            continue
        for n in range(1, (steps if kind == "step" else 1) + 1):
            yield from _sides(roles[0], "relay.send", kind, n)
            for role in roles[1:]:
                yield Instant(role, "relay.recv", kind, n, "after")


def _sides(role: str, site: str, kind: str | None = None, n: int = 1) -> Iterator[Instant]:
    for side in _BOTH:
        yield Instant(role, site, kind, n, side)
