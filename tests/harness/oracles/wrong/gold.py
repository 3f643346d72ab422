"""The second token of every request is another one than the model says, on all ranks alike."""

from __future__ import annotations

import multiprocessing

from engine.messages import FinishReason
from engine.scheduler import Scheduler
from engine.sequence import Chunk

_append = Scheduler.append


def _another(self: Scheduler, chunk: Chunk, token: int) -> FinishReason | None:
    sequence = chunk.sequence
    second = len(sequence.tokens) == sequence.prompt_length + 1
    return _append(self, chunk, token ^ 1 if second else token)


if multiprocessing.current_process().name != "MainProcess":
    Scheduler.append = _another  # type: ignore[method-assign]
