"""A plugin: the ranks agree once more before they are ready, as a change of the relay might have them do."""

from __future__ import annotations

import multiprocessing

from engine.clock import Deadline
from engine.relay.numbered import NumberedRelay

_whole = NumberedRelay._meet


def _twice(self: NumberedRelay, until: Deadline) -> None:
    _whole(self, until)
    _whole(self, until)


if multiprocessing.current_process().name.startswith("dp"):
    NumberedRelay._meet = _twice  # type: ignore[method-assign]
