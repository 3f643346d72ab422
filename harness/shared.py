"""The one world that all plans of a test process share, so that its fork parent is started once."""

from __future__ import annotations

import atexit
import threading

from harness.judge import judge
from harness.plan import Plan
from harness.verdict import Verdict
from harness.world.real import RealWorld

_lock = threading.Lock()
_world: RealWorld | None = None


def run(plan: Plan) -> Verdict:
    """Runs one plan on real processes and judges it. Raises PlanError for a plan that the target cannot run.

    The first call starts the world (2 to 4 seconds); it is closed when the process ends. Thread-safe.
    """
    return judge(_shared().run(plan), seed=plan.seed)


def _shared() -> RealWorld:
    global _world
    with _lock:
        if _world is None:
            _world = RealWorld(lanes=RealWorld.default_lanes())
            atexit.register(_world.close)
        return _world
