"""A plugin for plans in tests: the relay without synchronisation, under a name that nobody has heard of."""

from __future__ import annotations

from engine import relay
from engine.relay.unsynchronised import UnsynchronisedRelay


@relay.register("hearsay")
class HearsayRelay(UnsynchronisedRelay):
    """The same path, renamed: a proof must come from what happened, never from a name."""
