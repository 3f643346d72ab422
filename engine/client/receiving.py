"""What a client does with each message that comes in on `output`, in whatever way it waits for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from engine.client.resources import Resources
from engine.codec import Decoder
from engine.errors import EngineDeadError
from engine.messages import ENGINE_CORE_DEAD, NOTIFICATION_CALL_ID, Outputs, UtilityOutput, rank_role

_log = logging.getLogger("engine.client")


class Reception:
    """Decodes, checks and sorts. Knows the client's resources, never the client.

    `notified` gets what the engine says unasked, under the reserved call id.
    """

    def __init__(self, resources: Resources, notified: Callable[[UtilityOutput], None]) -> None:
        self._resources = resources
        self._notified = notified
        self._decoder = Decoder(Outputs)
        self.over = False
        """Whether nothing more is to be read: after the dead frame, or a message that cannot be understood."""

    def take(self, frames: Sequence[bytes]) -> Outputs | None:
        """One message: the outputs that a reader should have, or None.

        The dead frame ends the reception. A message that is not the next one, or cannot be read, ends it too, and is
        the engine's death.
        """
        if len(frames) == 1 and frames[0] == ENGINE_CORE_DEAD:
            self.over = True
            return None
        try:
            outputs = self._decoder.decode(frames)
        except msgspec.MsgspecError as error:
            self._refuse(f"sent an output frame that cannot be read: {error}")
            return None
        expected = self._resources.traffic.received + 1
        if outputs.number != expected:
            self._refuse(f"sent output {outputs.number} after {expected - 1}, expected {expected}")
            return None
        self._resources.received(outputs)
        if outputs.utility is not None:
            self._reply(outputs.utility)
        return outputs if outputs.outputs or outputs.stats is not None else None

    def _refuse(self, problem: str) -> None:
        self.over = True
        self._resources.die(EngineDeadError(rank_role(0), problem))

    def _reply(self, reply: UtilityOutput) -> None:
        if reply.call_id == NOTIFICATION_CALL_ID:
            self._notified(reply)
        elif not self._resources.calls.settle(reply):
            _log.debug("a reply came to call %d, for which nobody waits", reply.call_id)
