"""Who owns which page of the key-value cache, and what finished pages of prompts are good for again.

The page equation: every page is exactly one of these: unused, idle (nobody owns it, its content is kept), or owned by
as many live tables as are counted, more than one only if its content is known; and what is promised to live tables
beyond what they own can be had from unused and idle pages. :meth:`PagePool.check` proves it from the tables of those
requests that the scheduler knows, not from the pool's own books, so that a request that is dropped without giving its
pages back is found.

A page that is full of prompt tokens can be given a name, which says all that its content depends on: its tokens, all
tokens before them, its place (:func:`page_names`). A request whose prompt begins with named pages shares them; nobody
writes to them again. With its last owner gone a named page is idle: it can be shared again until its room is needed.

Pages are handed out in one order for one history: of the unused ones that which was given back last, which also keeps
the part of the cache that is ever touched small; when there is none, the one that has been idle longest.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from engine.errors import PageError

LISTED = 32
"""How many runs of page numbers an error lists at most; its text has to fit into a report line."""


def page_names(tokens: Sequence[int], page_size: int) -> list[bytes]:
    """The names of the full pages of a prompt: BLAKE2b (RFC 7693) of 16 bytes, each over the one before it."""
    names: list[bytes] = []
    name = b""
    for start in range(0, len(tokens) - page_size + 1, page_size):
        content = array("q", [start, *tokens[start : start + page_size]]).tobytes()
        name = hashlib.blake2b(name + content, digest_size=16).digest()
        names.append(name)
    return names


@dataclass(slots=True, eq=False)
class PageTable:
    """The pages of one request in the order of its tokens; it may own up to `limit`."""

    owner: str
    pages: list[int] = field(default_factory=list)
    limit: int = 0


class PagePool:
    """`num_pages` pages of `page_size` tokens each, all of them unused at first."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self._unused = list(range(num_pages - 1, -1, -1))
        self._idle: dict[int, None] = {}
        """In the order in which they became so."""
        self._owners = [0] * num_pages
        self._named: dict[bytes, int] = {}
        self._names: dict[int, bytes] = {}
        self._promised = 0

    @property
    def free(self) -> int:
        """Pages that nobody owns; some of them may be promised, some may hold what can be shared again."""
        return len(self._unused) + len(self._idle)

    @property
    def named(self) -> int:
        """Pages whose content is known, idle or owned."""
        return len(self._named)

    def pages_for(self, tokens: int) -> int:
        """How many pages that many tokens take."""
        return -(-tokens // self.page_size)

    def fits(self, tokens: int, names: Sequence[bytes] = ()) -> bool:
        """Whether room for `tokens`, the first of them in pages of these names as far as there are any, can be promised
        without touching what is promised to others."""
        shared = self._found(names)
        return self.pages_for(tokens) - self._owned(shared) <= self.free - self._promised

    def reserve(self, table: PageTable, tokens: int, names: Sequence[bytes] = ()) -> int:
        """Promise an empty table room for `tokens`, so that :meth:`grow` up to that never fails.

        It gets the pages of the first of these names right now, up to one that is not there; how many. Raises
        :class:`PageError` if it does not fit or something is promised already.
        """
        if table.limit or not self.fits(tokens, names):
            raise PageError(
                f"request {table.owner!r} cannot be promised {self.pages_for(tokens)} pages: it has {table.limit}, "
                f"{self.free} are free, {self._promised} of them promised"
            )
        for page in self._found(names):
            self._idle.pop(page, None)
            self._owners[page] += 1
            table.pages.append(page)
        table.limit = self.pages_for(tokens)
        self._promised += table.limit - len(table.pages)
        return len(table.pages)

    def grow(self, table: PageTable, tokens: int) -> None:
        """Give the table the pages for its first `tokens` tokens. Raises :class:`PageError` beyond its promise."""
        wanted = self.pages_for(tokens)
        if wanted > table.limit:
            raise PageError(f"request {table.owner!r} asks for {wanted} pages, promised are {table.limit}")
        while len(table.pages) < wanted:
            page = self._unused.pop() if self._unused else self._evict()
            self._owners[page] = 1
            table.pages.append(page)
            self._promised -= 1

    def name(self, table: PageTable, names: Sequence[bytes]) -> None:
        """The table's first pages are filled with what these names say, for good. A name that is taken stays so."""
        for page, name in zip(table.pages, names, strict=False):
            if name not in self._named and page not in self._names:
                self._named[name] = page
                self._names[page] = name

    def release(self, table: PageTable) -> None:
        """Take back what the table owns and was promised. Nothing happens to an empty one, so twice is harmless."""
        self._promised -= table.limit - len(table.pages)
        # The last page first: a page is of no use without those before it, so it is to be idle for longer than they.
        for page in reversed(table.pages):
            self._owners[page] -= 1
            if self._owners[page]:
                continue
            if page in self._names:
                self._idle[page] = None
            else:
                self._unused.append(page)
        table.pages.clear()
        table.limit = 0

    def forget(self) -> bool:
        """Keep no content of idle pages; whether no named page is left, which those with owners are."""
        while self._idle:
            self._unused.append(self._evict())
        return not self._named

    def check(self, tables: Iterable[PageTable]) -> None:
        """Prove the page equation for all live tables. Raises :class:`PageError` listing the pages that break it."""
        live = list(tables)
        if not self.adds_up(live):
            raise PageError(f"the {self.num_pages} pages do not add up: {'; '.join(self.problems(live))}")

    def adds_up(self, tables: Sequence[PageTable]) -> bool:
        """Whether there are no :meth:`problems`, which is told much faster than what they are."""
        owners = [0] * self.num_pages
        for table in tables:
            if not _are_pages(table.pages, self.num_pages):
                return False
            for page in table.pages:
                owners[page] += 1
        free = [*self._unused, *self._idle]
        promised = sum(table.limit - len(table.pages) for table in tables)
        return (
            owners == self._owners
            and _are_pages(free, self.num_pages)
            and not any(owners[page] for page in free)
            and owners.count(0) == len(free)
            and all(page in self._names for page, count in enumerate(owners) if count > 1)
            and len(self._named) == len(self._names)
            and {page: name for name, page in self._named.items()} == self._names
            and self._idle.keys() <= self._names.keys()
            and self._names.keys().isdisjoint(self._unused)
            and self._promised == promised <= self.free
        )

    def problems(self, tables: Sequence[PageTable]) -> list[str]:
        """How the pages break the page equation, a clause each."""
        holders = [("the free list", self._unused), ("the idle list", list(self._idle))]
        promised = 0
        for table in tables:
            holders.append((f"request {table.owner!r}", table.pages))
            promised += table.limit - len(table.pages)
        owners: list[list[int]] = [[] for _ in range(self.num_pages)]
        foreign: list[str] = []
        for index, (holder, pages) in enumerate(holders):
            for page in pages:
                if 0 <= page < self.num_pages:
                    owners[page].append(index)
                else:
                    foreign.append(f"{page} in {holder}")
        lost = [page for page, who in enumerate(owners) if not who]
        doubles = {page: who for page, who in enumerate(owners) if len(who) > 1 and not self._may_share(page, who)}
        counts = [sum(index > 1 for index in who) for who in owners]
        miscounted = [
            f"{page} has {counts[page]}, counted are {self._owners[page]}"
            for page, who in enumerate(owners)
            if who and page not in doubles and counts[page] != self._owners[page]
        ]
        misnamed = {page for page, name in self._names.items() if self._named.get(name) != page}
        misnamed |= {page for name, page in self._named.items() if self._names.get(page) != name}
        misnamed |= {page for page in self._idle if page not in self._names}
        misnamed |= {page for page in self._unused if page in self._names}
        problems = []
        if lost:
            problems.append(f"{len(lost)} owned by nobody ({_runs(lost)})")
        if doubles:
            said = [f"{page} by {' and '.join(holders[index][0] for index in who)}" for page, who in doubles.items()]
            problems.append(f"{len(doubles)} owned twice ({_some(said)})")
        if foreign:
            problems.append(f"{len(foreign)} that do not exist ({_some(foreign)})")
        if miscounted:
            problems.append(f"{len(miscounted)} with a wrong count of owners ({_some(miscounted)})")
        if misnamed:
            problems.append(f"{len(misnamed)} under a wrong name ({_runs(sorted(misnamed))})")
        if promised != self._promised or promised > self.free:
            problems.append(f"{self._promised} promised, live requests may still take {promised}, {self.free} are free")
        return problems

    def _found(self, names: Sequence[bytes]) -> list[int]:
        """The pages of the first of these names, up to one that is not there."""
        found: list[int] = []
        for name in names:
            page = self._named.get(name)
            if page is None:
                break
            found.append(page)
        return found

    def _owned(self, pages: list[int]) -> int:
        """How many of these have an owner, so that one more takes nothing from the free ones."""
        return sum(page not in self._idle for page in pages)

    def _evict(self) -> int:
        """The page that has been idle longest, without its content. Raises :class:`PageError` if there is none."""
        page = next(iter(self._idle), None)
        if page is None:
            raise PageError(f"none of the {self.num_pages} pages is free, though {self._promised} are promised")
        del self._idle[page]
        del self._named[self._names.pop(page)]
        return page

    def _may_share(self, page: int, who: list[int]) -> bool:
        """Whether these holders are tables, each once, and the page's content is known."""
        return page in self._names and min(who) > 1 and len(set(who)) == len(who)


def _are_pages(pages: Sequence[int], count: int) -> bool:
    """Whether these are numbers of pages, each once."""
    return len(set(pages)) == len(pages) and (not pages or (min(pages) >= 0 and max(pages) < count))


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
