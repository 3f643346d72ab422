"""Rank 0 hands its outputs to a thread that sends them, through a queue of one, and gets a word back through another.

It asks for those words only after every fourth output. By then the thread stands before a full queue of words, and rank
0 before a full queue of outputs: each has what the other waits for. Two bounded queues between the same two parties are
enough for that (client.md M58, M60).
"""

from __future__ import annotations

import multiprocessing
import queue
import threading
from typing import Any

from engine.ports import Port

EVERY = 4
"""Outputs after which rank 0 asks whether all were sent."""

_send = Port.send
_outputs: queue.Queue[tuple[Port, tuple[Any, ...], dict[str, Any]]] = queue.Queue(1)
_words: queue.Queue[int] = queue.Queue(1)
_handed = 0


def _work() -> None:
    while True:
        port, args, kwargs = _outputs.get()
        _send(port, *args, **kwargs)
        _words.put(port.sent)


def _hand_over(self: Port, *args: Any, **kwargs: Any) -> None:
    global _handed
    if not _handed:
        threading.Thread(target=_work, name="sender", daemon=True).start()
    _handed += 1
    _outputs.put((self, args, kwargs))
    if not _handed % EVERY:
        for _ in range(EVERY):
            _words.get()


if multiprocessing.current_process().name == "dp0.rank0":
    Port.send = _hand_over  # type: ignore[method-assign]
