"""Every page has one owner, and a page that has none or two is an error that names it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import PageError
from engine.messages import Request, SamplingParams
from engine.pages import PagePool, PageTable
from engine.scheduler import Scheduler
from tests.engine.inline import Inline, PageModel


def taken(pool: PagePool, owner: str, tokens: int) -> PageTable:
    table = PageTable(owner)
    pool.reserve(table, tokens)
    pool.grow(table, tokens)
    return table


@given(st.integers(1, 30), st.integers(1, 5), st.data())
def test_the_equation_holds_whatever_is_taken_and_given_back(pages: int, page_size: int, data: st.DataObject) -> None:
    pool, tables, promised = PagePool(pages, page_size), list[PageTable](), list[int]()
    for number in range(data.draw(st.integers(0, 20))):
        action = data.draw(st.sampled_from(["reserve", "grow", "release"]))
        if action == "reserve":
            tokens, table = data.draw(st.integers(1, 40)), PageTable(f"r{number}")
            room = pages - sum(one.limit for one in tables)
            assert pool.fits(tokens) == (pool.pages_for(tokens) <= room)
            if pool.fits(tokens):
                pool.reserve(table, tokens)
                tables.append(table)
                promised.append(tokens)
        elif tables:
            index = data.draw(st.integers(0, len(tables) - 1))
            if action == "grow":
                tokens = data.draw(st.integers(0, promised[index]))
                pool.grow(tables[index], tokens)
                assert len(tables[index].pages) * page_size >= tokens
            else:
                pool.release(tables.pop(index))
                del promised[index]
        pool.check(tables)
        assert pool.free == pages - sum(len(table.pages) for table in tables)


def test_pages_are_handed_out_in_a_fixed_order_and_the_last_freed_come_first() -> None:
    pool = PagePool(6, 1)
    first, second = taken(pool, "a", 2), taken(pool, "b", 2)
    assert (first.pages, second.pages) == ([0, 1], [2, 3])
    pool.release(first)
    assert taken(pool, "c", 3).pages == [0, 1, 4]


def test_giving_back_twice_is_harmless() -> None:
    pool = PagePool(4, 2)
    table = taken(pool, "a", 3)
    pool.release(table)
    pool.release(table)
    pool.check([])


def test_a_table_never_gets_more_than_it_was_promised() -> None:
    pool = PagePool(4, 2)
    table = taken(pool, "a", 3)
    with pytest.raises(PageError, match="request 'a' asks for 3 pages, promised are 2"):
        pool.grow(table, 5)
    with pytest.raises(PageError, match="request 'b' cannot be promised 3 pages"):
        pool.reserve(PageTable("b"), 6)


def test_lost_shared_and_foreign_pages_are_listed() -> None:
    pool = PagePool(100, 1)
    lost, kept = taken(pool, "lost", 5), taken(pool, "kept", 4)
    with pytest.raises(PageError, match=r"100 pages do not add up: 5 owned by nobody \(0-4\)$"):
        pool.check([kept])
    pool.release(lost)
    twice = PageTable("twice", [5, 99, 100], 3)
    with pytest.raises(PageError) as caught:
        pool.check([kept, twice])
    assert "2 owned twice (5 by request 'kept' and request 'twice', 99 by the free list and request 't" in str(
        caught.value
    )
    assert "1 that do not exist (100 in request 'twice')" in str(caught.value)


def test_a_broken_promise_is_found() -> None:
    pool = PagePool(8, 1)
    table = PageTable("a")
    pool.reserve(table, 5)
    pool.grow(table, 2)
    with pytest.raises(PageError, match="3 promised, live requests may still take 0"):
        pool.check([PageTable("a", table.pages, 2)])


def test_the_list_of_pages_is_short_enough_for_a_report_line() -> None:
    pool = PagePool(4000, 1)
    tables = [taken(pool, str(number), 1) for number in range(4000)]
    with pytest.raises(PageError, match=r"2000 owned by nobody .* and 1968 more\)") as caught:
        pool.check(tables[::2])
    assert len(str(caught.value)) < 1000


class Leaky(PagePool):
    """Forgets the last page of everything that is given back."""

    def release(self, table: PageTable) -> None:
        if table.pages:
            table.pages.pop()
            table.limit -= 1
        super().release(table)


def leaky(**changes: int) -> Inline:
    inline = Inline(PageModel(), **changes)
    scheduler: Scheduler = inline.core.scheduler
    scheduler.pages = Leaky(inline.config.num_pages, inline.config.page_size)
    return inline


def test_a_leak_is_an_error_as_soon_as_the_engine_is_idle() -> None:
    inline = leaky(num_pages=8, page_size=2)
    inline.add(Request("a", [1, 2, 3], SamplingParams(2)))
    inline.add(Request("b", [1], SamplingParams(1)))
    inline.step()
    with pytest.raises(PageError, match=r"8 pages do not add up: 2 owned by nobody \(1-2\)"):
        inline.step()


def test_a_leak_that_keeps_a_request_waiting_is_an_error_too_and_no_endless_wait() -> None:
    inline = leaky(num_pages=4, page_size=1)
    inline.add(Request("a", [1], SamplingParams(3)))
    inline.add(Request("b", [1], SamplingParams(3)))
    with pytest.raises(PageError, match=r"1 owned by nobody \(2\)"):
        inline.drain(most=20)
