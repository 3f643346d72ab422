"""The ledger of one run: everything the proxy saw, in order, and the clock that stamps it."""

from __future__ import annotations

import time

from harness.proxy.records import Connected, Direction, Record, Released, Trouble

now_ns = time.monotonic_ns


class Ledger:
    """An append-only list of records; `add` takes a finished record."""

    __slots__ = ("add", "records")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.add = self.records.append

    def accepted(self, link: str, connector: str, connection: int) -> None:
        """A connection has been made on both sides."""
        self.add(Connected(now_ns(), link, connector, connection, "accepted"))

    def refused(self, link: str, connector: str, connection: int, detail: str) -> None:
        """A connection was closed because the upstream could not be dialled."""
        self.add(Connected(now_ns(), link, connector, connection, "refused", "binder", 0, detail))

    def released(self, rule: int, by: str, holds: int) -> None:
        """A rule's release instant has come."""
        self.add(Released(now_ns(), rule, by, holds))  # type: ignore[arg-type]

    def trouble(
        self, what: str, link: str = "", connector: str = "", direction: Direction | None = None, connection: int = 0
    ) -> None:
        """Something could not be read."""
        self.add(Trouble(now_ns(), link, connector, direction, connection, what))
