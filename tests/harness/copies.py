"""A plugin for plans in tests: relays under names that nobody has heard of."""

from __future__ import annotations

import subprocess

from engine import relay
from engine.relay.handshake import HandshakeRelay
from engine.relay.unsynchronised import UnsynchronisedRelay


@relay.register("hearsay")
class HearsayRelay(UnsynchronisedRelay):
    """The same path, renamed: a proof must come from what happened, never from a name."""


STRAY = "hearsay-with-a-stray"


@relay.register(STRAY)
class StrayRelay(HandshakeRelay):
    """The healthy relay of an engine whose rank 0 starts a program of its own and forgets it."""

    def open(self) -> None:
        super().open()
        subprocess.Popen(["sleep", "600"])
