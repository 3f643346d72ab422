"""The ledger of one run: everything the proxy saw, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.clock import now
from harness.proxy.records import Connected, Direction, Ending, Record, Released, Trouble
from harness.zmtp import Message

_MOST_UNREAD, _MOST_UNREAD_BYTES = 64, 1 << 20

_Note = Callable[[Sequence[Message], int], None]


class Ledger:
    """An append-only list of records.

    What has gone on already may be added later: whoever asks, and whatever is added meanwhile, finds it in its place.
    """

    __slots__ = ("_records", "_unread", "_unread_bytes")

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._unread: list[tuple[_Note, Sequence[Message], int]] = []
        self._unread_bytes = 0

    @property
    def records(self) -> list[Record]:
        """All of them, in order."""
        self.catch_up()
        return self._records

    def add(self, record: Record) -> None:
        """A finished record."""
        if self._unread:
            self.catch_up()
        self._records.append(record)

    def later(self, note: _Note, messages: Sequence[Message], arrived: int, size: int) -> None:
        """Call `note` with messages of `size` bytes that arrived then, which adds them, when there is time for it."""
        self._unread.append((note, messages, arrived))
        self._unread_bytes += size
        if len(messages) + len(self._unread) > _MOST_UNREAD or self._unread_bytes > _MOST_UNREAD_BYTES:
            self.catch_up()

    def catch_up(self) -> None:
        """Add all that was to be added later."""
        unread, self._unread, self._unread_bytes = self._unread, [], 0
        for note, messages, arrived in unread:
            note(messages, arrived)

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
