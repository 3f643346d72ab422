"""Pages of which several requests are the owners: the equation holds, and every way to break it is found."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import PageError
from engine.pages import PagePool, PageTable, page_names

BASE = [1, 1, 2, 1, 1, 2, 2, 1, 1, 1, 2, 2]
"""Prompts are its beginnings, some with another end, so that many have much in common."""


@settings(max_examples=300)
@given(st.integers(1, 12), st.integers(1, 3), st.data())
def test_the_equation_holds_whatever_is_shared(pages: int, page_size: int, data: st.DataObject) -> None:
    pool, tables = PagePool(pages, page_size), dict[str, tuple[PageTable, list[bytes]]]()
    for number in range(data.draw(st.integers(0, 25))):
        action = data.draw(st.sampled_from(["reserve", "reserve", "fill", "grow", "name", "release", "forget"]))
        if action == "reserve":
            prompt = data.draw(st.sampled_from([BASE, BASE, BASE[::-1]]))[: data.draw(st.integers(1, 12))]
            tokens, names = len(prompt) + data.draw(st.integers(0, 4)), page_names(prompt, page_size)
            table = PageTable(f"r{number}")
            if pool.fits(tokens, names):
                shared = pool.reserve(table, tokens, names)
                assert shared == len(table.pages) <= len(names)
                tables[table.owner] = table, names
            else:
                with pytest.raises(PageError, match="cannot be promised"):
                    pool.reserve(table, tokens, names)
        elif action == "forget":
            assert pool.forget() == (pool.named == 0)
        elif tables:
            owner = data.draw(st.sampled_from(sorted(tables)))
            table, names = tables[owner]
            if action == "grow":
                pool.grow(table, data.draw(st.integers(0, table.limit * page_size)))
            elif action == "fill":
                pool.grow(table, table.limit * page_size)
                pool.name(table, names)
            elif action == "name":
                pool.name(table, names[: data.draw(st.integers(0, len(names)))])
            else:
                pool.release(table)
                del tables[owner]
        pool.check(table for table, _ in tables.values())
        assert pool.free == pages - len({page for table, _ in tables.values() for page in table.pages})
    # What was promised can be had, by all at once.
    for table, _ in tables.values():
        pool.grow(table, table.limit * page_size)
    pool.check(table for table, _ in tables.values())
    for table, _ in tables.values():
        pool.release(table)
    pool.check([])
    assert pool.free == pages


def shared_pool() -> tuple[PagePool, list[PageTable]]:
    """Two tables that share page 0 and own 1 and 2; page 3 is idle, 4 and 5 are unused."""
    pool, names = PagePool(6, 1), page_names([7, 8], 1)
    first, second, gone = PageTable("first"), PageTable("second"), PageTable("gone")
    pool.reserve(first, 2)
    pool.grow(first, 2)
    pool.name(first, names[:1])
    pool.reserve(second, 2, names[:1])
    pool.grow(second, 2)
    pool.reserve(gone, 1)
    pool.grow(gone, 1)
    pool.name(gone, [b"idle"])
    pool.release(gone)
    assert (first.pages, second.pages, pool.free) == ([0, 1], [0, 2], 3)
    return pool, [first, second]


def test_every_way_to_break_the_equation_is_found() -> None:
    pool, tables = shared_pool()
    pool.check(tables)
    with pytest.raises(PageError, match=r"1 owned by nobody \(2\); 1 with a wrong count of owners \(0 has 1, counted "):
        pool.check(tables[:1])
    with pytest.raises(PageError, match=r"1 owned by nobody \(2\); 1 owned twice \(1 by request 'first' and request "):
        pool.check([tables[0], PageTable("second", [0, 1], 2)])
    with pytest.raises(PageError, match=r"1 owned twice \(0 by request 'first' and request 'first' and "):
        pool.check([PageTable("first", [0, 0, 1], 3), tables[1]])
    with pytest.raises(PageError, match=r"1 owned twice \(3 by the idle list and request 'third'\)"):
        pool.check([*tables, PageTable("third", [3], 1)])
    for broken in ("_named", "_names", "_idle"):
        pool, tables = shared_pool()
        getattr(pool, broken).popitem()
        with pytest.raises(PageError, match=r"under a wrong name \(3\)|owned by nobody \(3\)"):
            pool.check(tables)


@given(st.data())
def test_the_quick_look_at_the_equation_says_what_the_thorough_one_says(data: st.DataObject) -> None:
    """Whatever is changed in the books or the tables of the pool above."""
    pool, tables = shared_pool()
    pages, names = st.integers(-1, 6), st.sampled_from([*pool._named, b"other"])
    for _ in range(data.draw(st.integers(0, 2))):
        table = data.draw(st.sampled_from(tables))
        table.pages = data.draw(st.lists(pages, max_size=3) | st.just(table.pages))
        table.limit = data.draw(st.sampled_from([table.limit, 1, 3]))
        pool._unused = data.draw(st.lists(pages, max_size=3) | st.just(pool._unused))
        pool._idle = data.draw(st.dictionaries(pages, st.none(), max_size=2) | st.just(pool._idle))
        pool._owners = data.draw(st.lists(st.integers(0, 2), min_size=6, max_size=6) | st.just(pool._owners))
        pool._named = data.draw(st.dictionaries(names, pages, max_size=2) | st.just(pool._named))
        pool._names = data.draw(st.dictionaries(pages, names, max_size=2) | st.just(pool._names))
        pool._promised = data.draw(st.integers(0, 2) | st.just(pool._promised))
    assert pool.adds_up(tables) == (pool.problems(tables) == [])
