"""A second client of an engine, of the same kind as the first and in the same process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tests.invariants.callers import Caller, LoopCaller, PlainCaller


class LoopGuest(LoopCaller):
    """On the owner's loop."""

    def __init__(self, owner: LoopCaller) -> None:
        Caller.__init__(self, owner.factory)
        self.client = type(owner.client).join(owner.client.seat(1))
        self.loop = owner.loop


class PlainGuest(PlainCaller):
    """With a receiver thread of its own."""

    def __init__(self, owner: PlainCaller) -> None:
        Caller.__init__(self, owner.factory)
        self.client = type(owner.client).join(owner.client.seat(1))


@contextlib.contextmanager
def joined(owner: Caller) -> Iterator[Caller]:
    """Client 1 of the owner's engine, which must have room for it (`client_count`)."""
    guest: Caller
    if isinstance(owner, LoopCaller):
        guest = LoopGuest(owner)
    elif isinstance(owner, PlainCaller):
        guest = PlainGuest(owner)
    else:
        raise TypeError(f"no guest for a {type(owner).__name__}")
    try:
        yield guest
    finally:
        guest.client.shutdown()
