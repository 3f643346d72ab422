"""nowedge: breaks a multi-process tensor-parallel inference engine on purpose, and proves what wedges.

For a test suite of one's own::

    from hypothesis import given
    from harness import plans, run

    @given(plans(tp=(1, 4), faults=["delay", "kill", "drop"]))
    def test_engine_never_wedges(plan):
        verdict = run(plan)
        assert verdict.ok, verdict
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.search.strategies import plans
    from harness.shared import run

__all__ = ["plans", "run"]


def __getattr__(name: str) -> Any:
    # Looked up on first use: the ranks of a run import parts of this package, and they need no Hypothesis.
    if name == "plans":
        from harness.search.strategies import plans

        return plans
    if name == "run":
        from harness.shared import run

        return run
    raise AttributeError(f"module 'harness' has no attribute '{name}'")
