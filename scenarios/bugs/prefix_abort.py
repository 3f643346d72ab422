"""An abort ends every request whose id begins with the id that it names.

An engine that makes several sequences of one request ends them all by their common beginning. An empty id, or a short
one, is then the end of everybody's requests. Both are in the report.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.messages import RequestOutput
from engine.scheduler import Scheduler
from harness.seam import bug_canary

BUG = "A1"

_abort = Scheduler.abort


@bug_canary.patch(Scheduler, "abort")
def _abort_all_that_begin_so(self: Scheduler, request_ids: Iterable[str], client_index: int = 0) -> list[RequestOutput]:
    bug_canary.reached(BUG)
    ended = []
    for wanted in request_ids:
        for client, request_id in self.live():
            if client == client_index and request_id.startswith(wanted):
                if request_id != wanted:
                    bug_canary.triggered(BUG)
                ended += _abort(self, [request_id], client)
    return ended
