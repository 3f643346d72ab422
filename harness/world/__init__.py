"""Worlds: what turns a plan into a history. A world does not know why a plan was chosen, nor what comes of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from harness.history import History
from harness.plan import Plan


class World(Protocol):
    """Runs plans. Real processes are one world; a simulator or a foreign engine may be others."""

    def run(self, plan: Plan) -> History:
        """Runs one plan to its end, always cleans up, and returns what happened."""
        ...

    def run_many(self, plans: Iterable[Plan]) -> Iterator[tuple[Plan, History]]:
        """Runs plans in all lanes, pulling them as lanes become free; yields in the order in which runs end."""
        ...
