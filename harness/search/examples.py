"""Plans that have failed, kept from one hunt to the next in an example database of Hypothesis.

The next hunt of the same target, relay and bug begins with them. One that passes is taken out again, as Hypothesis does
with its own examples; one that nobody can read any more, since plans are written differently by now, is too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from hypothesis.database import ExampleDatabase

from harness.plan import Plan, PlanError, from_json, to_json
from harness.targets import get
from harness.trial import Trial
from harness.verdict import EXIT_FAILED, EXIT_PASSED

MOST = 20
"""Plans with which a hunt begins; the smallest ones."""


class Examples:
    """What is kept under one name, such as the target, the relay and the bug of a hunt."""

    def __init__(self, database: ExampleDatabase | None, *name: str) -> None:
        self._database = database
        self._key = "/".join(("nowedge", *name)).encode()

    def plans(self) -> Iterator[Plan]:
        """The plans that have failed."""
        if self._database is None:
            return
        for raw in sorted(self._database.fetch(self._key), key=lambda raw: (len(raw), raw))[:MOST]:
            try:
                plan = from_json(raw)
                get(plan.target).check(plan)
            except PlanError:
                self._database.delete(self._key, raw)
            else:
                yield plan

    def tell(self, trial: Trial) -> None:
        """A plan has been run: it is kept if it has failed, and no longer if it has passed."""
        if self._database is None:
            return
        raw, code = to_json(trial.plan), trial.verdict.exit_code
        # A database that cannot be written keeps nothing; the failure has a folder of its own, which must be written.
        with contextlib.suppress(OSError):
            if code == EXIT_FAILED:
                self._database.save(self._key, raw)
            elif code == EXIT_PASSED:
                self._database.delete(self._key, raw)
