"""Novelty: how much of the order in which a run's events came about has not been seen before.

Two events of different roles, one of them the last that its role had come to when the other happened, are one meeting.
What wedges an engine is mostly an order that nobody thought of, so plans that bring new meetings are worth a closer
look. How often an event came before is left out: a longer answer would be nothing but new.
"""

from __future__ import annotations

from harness.history import History


class Novelty:
    """All meetings so far."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    @property
    def meetings(self) -> int:
        """How many different meetings there were."""
        return len(self._seen)

    def of(self, history: History) -> int:
        """How many meetings of this run are new; from now on they are not."""
        before = len(self._seen)
        last: dict[str, str] = {}
        for event in history.events:
            name = f"{event.role}:{event.site}[{event.kind}]:{event.side}"
            for role, other in last.items():
                if role != event.role:
                    self._seen.add(hash((name, other)))
            last[event.role] = name
        return len(self._seen) - before
