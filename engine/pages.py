"""Who owns which page of the key-value cache.

The page equation: the free pages and the pages of all live tables together are all pages, each exactly once; and what
is promised to live tables beyond what they own is free. :meth:`PagePool.check` proves it from the tables of those
requests that the scheduler knows, not from the pool's own books, so that a request that is dropped without giving its
pages back is found.

Pages are handed out in one order for one history: the page that was freed last comes first, which also keeps the part
of the cache that is ever touched small.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.errors import PageError

LISTED = 32
"""How many runs of page numbers an error lists at most; its text has to fit into a report line."""


@dataclass(slots=True, eq=False)
class PageTable:
    """The pages of one request in the order of its tokens; it may own up to `limit`."""

    owner: str
    pages: list[int] = field(default_factory=list)
    limit: int = 0


class PagePool:
    """`num_pages` pages of `page_size` tokens each, all of them free at first."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self._free = list(range(num_pages - 1, -1, -1))
        self._promised = 0

    @property
    def free(self) -> int:
        """Pages that nobody owns; some of them may be promised."""
        return len(self._free)

    def pages_for(self, tokens: int) -> int:
        """How many pages that many tokens take."""
        return -(-tokens // self.page_size)

    def fits(self, tokens: int) -> bool:
        """Whether `tokens` more can be promised without touching what is promised to others."""
        return self.pages_for(tokens) <= len(self._free) - self._promised

    def reserve(self, table: PageTable, tokens: int) -> None:
        """Promise an empty table room for `tokens`, so that :meth:`grow` up to that never fails.

        Raises :class:`PageError` if it does not fit or something is promised already.
        """
        if table.limit or not self.fits(tokens):
            raise PageError(
                f"request {table.owner!r} cannot be promised {self.pages_for(tokens)} pages: it has {table.limit}, "
                f"{self.free} are free, {self._promised} of them promised"
            )
        table.limit = self.pages_for(tokens)
        self._promised += table.limit

    def grow(self, table: PageTable, tokens: int) -> None:
        """Give the table the pages for its first `tokens` tokens. Raises :class:`PageError` beyond its promise."""
        wanted = self.pages_for(tokens)
        if wanted > table.limit:
            raise PageError(f"request {table.owner!r} asks for {wanted} pages, promised are {table.limit}")
        while len(table.pages) < wanted:
            table.pages.append(self._free.pop())
            self._promised -= 1

    def release(self, table: PageTable) -> None:
        """Take back what the table owns and was promised. Nothing happens to an empty one, so twice is harmless."""
        self._promised -= table.limit - len(table.pages)
        self._free.extend(reversed(table.pages))
        table.pages.clear()
        table.limit = 0

    def check(self, tables: Iterable[PageTable]) -> None:
        """Prove the page equation for all live tables. Raises :class:`PageError` listing the pages that break it."""
        owners: list[list[str]] = [[] for _ in range(self.num_pages)]
        foreign: list[str] = []
        promised = 0
        holders = [("the free list", self._free)]
        for table in tables:
            holders.append((f"request {table.owner!r}", table.pages))
            promised += table.limit - len(table.pages)
        for holder, pages in holders:
            for page in pages:
                if 0 <= page < self.num_pages:
                    owners[page].append(holder)
                else:
                    foreign.append(f"{page} in {holder}")
        lost = [page for page, who in enumerate(owners) if not who]
        shared = [f"{page} by {' and '.join(who)}" for page, who in enumerate(owners) if len(who) > 1]
        problems = []
        if lost:
            problems.append(f"{len(lost)} owned by nobody ({_runs(lost)})")
        if shared:
            problems.append(f"{len(shared)} owned twice ({_some(shared)})")
        if foreign:
            problems.append(f"{len(foreign)} that do not exist ({_some(foreign)})")
        if promised != self._promised or promised > self.free:
            problems.append(f"{self._promised} promised, live requests may still take {promised}, {self.free} are free")
        if problems:
            raise PageError(f"the {self.num_pages} pages do not add up: {'; '.join(problems)}")


def _runs(pages: list[int]) -> str:
    """Ascending page numbers, neighbours drawn together: 0-3, 7."""
    runs: list[list[int]] = []
    for page in pages:
        if runs and page == runs[-1][1] + 1:
            runs[-1][1] = page
        else:
            runs.append([page, page])
    return _some([str(first) if first == last else f"{first}-{last}" for first, last in runs])


def _some(texts: list[str]) -> str:
    more = len(texts) - LISTED
    return ", ".join(texts[:LISTED]) + (f" and {more} more" if more > 0 else "")
