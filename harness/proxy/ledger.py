"""The ledger of one run: everything the proxy saw, in order."""

from __future__ import annotations

from harness.clock import now
from harness.proxy.records import Connected, Direction, Ending, Record, Released, Trouble


class Ledger:
    """An append-only list of records; `add` takes a finished record."""

    __slots__ = ("add", "records")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.add = self.records.append

    def accepted(self, link: str, connector: str, connection: int) -> None:
        """A connection has been made on both sides."""
        self.add(Connected(now(), link, connector, connection, "accepted"))

    def refused(self, link: str, connector: str, connection: int, detail: str) -> None:
        """The upstream could not be dialled; the connection waits for it."""
        self.add(Connected(now(), link, connector, connection, "refused", "binder", 0, detail))

    def released(self, rule: int, by: Ending, holds: int) -> None:
        """A rule's release instant has come."""
        self.add(Released(now(), rule, by, holds))

    def trouble(
        self, what: str, link: str = "", connector: str = "", direction: Direction | None = None, connection: int = 0
    ) -> None:
        """Something could not be read."""
        self.add(Trouble(now(), link, connector, direction, connection, what))
