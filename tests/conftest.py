"""Hypothesis profiles: `dev` (default), `ci` (when CI is set) and `nightly`; HYPOTHESIS_PROFILE chooses by name.

Most tests fork ranks from this process, so it is made cheap to fork once all tests are imported.
"""

from __future__ import annotations

import gc
import os

from hypothesis import HealthCheck, settings

from harness.zygote import pages

# A shared machine stalls now and then: time is never a reason to fail an example.
settings.register_profile("dev", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("dev"), max_examples=100, derandomize=True, print_blob=True)
settings.register_profile("nightly", settings.get_profile("dev"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


def pytest_collection_finish() -> None:
    """Everything is imported: what is here now stays, and a collection of garbage in a fork need not touch it."""
    gc.collect()
    gc.freeze()
    pages.collapse()
