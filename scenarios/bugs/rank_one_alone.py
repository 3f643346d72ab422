"""The handshake is over when rank 1 has heard a hello; whether the others have is not asked.

Written and tested with two ranks. With three or more, a rank whose subscription comes later than rank 1's misses DONE,
and with it the start: the engine dies of a slow joiner, which is what the handshake is there to bear. A published fix
for the same report counts subscriptions so that it sees only the first one.
"""

from __future__ import annotations

import dataclasses

from engine.clock import Deadline
from engine.errors import EngineError
from engine.relay.handshake import HandshakeRelay, Round
from harness.seam import bug_canary

BUG = "H2"

_round = HandshakeRelay._round


@bug_canary.patch(HandshakeRelay, "_round")
def _round_of_two(self: HandshakeRelay, number: int, deadline: Deadline, failure: EngineError | None) -> Round:
    outcome = _round(self, number, deadline, failure)
    bug_canary.reached(BUG)
    heard_by_first = [rank for rank in outcome.unheard if rank <= 1]
    if outcome.unheard and not heard_by_first and not outcome.unjoined:
        bug_canary.triggered(BUG)
    return dataclasses.replace(outcome, unheard=heard_by_first)
