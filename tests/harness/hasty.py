"""A client program whose large arrays are gone before it can wait for them, as on a machine that stole it the core."""

from __future__ import annotations

import multiprocessing

import zmq

from engine.client.sending import Outbox
from engine.messages import Request

_add = Outbox.add


def _add_and_wait(self: Outbox, request: Request) -> zmq.MessageTracker | None:
    parcel = _add(self, request)
    if parcel is not None:
        parcel.wait()
    return parcel


if multiprocessing.current_process().name != "MainProcess":
    Outbox.add = _add_and_wait  # type: ignore[method-assign]
