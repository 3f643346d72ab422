"""A cancellation that comes while a request's arrays are on their way is taken for the end of the wait.

The sending waits until the socket has let go the caller's memory. Whoever is cancelled in there is let out of the wait
and goes on, and the cancellation is gone: the caller's timeout never takes hold, and the request is served for nobody.
As in the report, where a wait with a time limit swallows a cancel.
"""

from __future__ import annotations

import asyncio

from engine.client.aio import Attachment
from engine.client.sending import Parcel
from harness.seam import bug_canary

BUG = "E5"

_delivered = Attachment.delivered


@bug_canary.patch(Attachment, "delivered")
async def _delivered_or_not(self: Attachment, parcel: Parcel | None) -> None:
    if parcel is not None:
        bug_canary.reached(BUG)
    try:
        await _delivered(self, parcel)
    except asyncio.CancelledError:
        bug_canary.triggered(BUG)
