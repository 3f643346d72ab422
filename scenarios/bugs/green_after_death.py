"""Health asks whether the ranks that are there get on, and not whether the engine is dead.

A dead engine has no ranks any more, so none of them is late, and health is green for ever. Requests fail as they
should; only whoever asks first, such as a load balancer, goes on sending them here. In the report the engine was
killed, and its server's health stayed at 200.
"""

from __future__ import annotations

from engine import health
from engine.client.base import MPClient
from harness.seam import bug_canary

BUG = "E2"


@bug_canary.patch(MPClient, "check_health")
def _check_health(self: MPClient) -> None:
    bug_canary.reached(BUG)
    if self.dead is not None:
        bug_canary.triggered(BUG)
    resources = self._resources
    pids = list(self.pids.values())
    health.check(resources.pulses.read(), resources.link(), resources.traffic, pids, self.config.timeouts.stall)
