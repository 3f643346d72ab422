"""Hypothesis profiles: `dev` (default), `ci` (when CI is set) and `nightly`; HYPOTHESIS_PROFILE chooses by name."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# A shared machine stalls now and then: time is never a reason to fail an example.
settings.register_profile("dev", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("dev"), max_examples=100, derandomize=True, print_blob=True)
settings.register_profile("nightly", settings.get_profile("dev"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))
