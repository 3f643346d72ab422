"""How a test says which promise it checks and what breaks it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

MOST_LINES = 4
"""A change is one line in spirit: this many at most are taken out or put in."""

_MARKINGS = "invariants"

Marked = TypeVar("Marked", bound=Callable[..., object])


class ChangeError(ValueError):
    """A change that cannot be made."""


@dataclass(frozen=True)
class Change:
    """Whole lines of one file of the engine, and what stands there instead.

    `file` is relative to the root of the project. How far `old` and `new` are indented does not matter; the lines
    within each keep their indentation against the first. `old` must be found exactly once.
    """

    file: str
    old: str
    new: str

    def applied(self, source: str) -> str:
        """The source with the change made. Raises :class:`ChangeError` if `old` is not there exactly once."""
        lines, new = source.splitlines(), _lines(self.new)
        at, indent = self._place(lines, new)
        lines[at : at + len(_lines(self.old))] = [indent + line if line else line for line in new]
        return "\n".join(lines) + "\n"

    def lines(self, source: str) -> range:
        """The numbers of the lines that are changed, from 1. Raises :class:`ChangeError`."""
        at, _ = self._place(source.splitlines(), _lines(self.new))
        return range(at + 1, at + 1 + len(_lines(self.old)))

    def _place(self, lines: list[str], new: list[str]) -> tuple[int, str]:
        old = _lines(self.old)
        if not any(old) or len(old) > MOST_LINES or len(new) > MOST_LINES:
            raise ChangeError(f"{self}: expected 1 to {MOST_LINES} old lines and at most {MOST_LINES} new ones")
        if old == new:
            raise ChangeError(f"{self}: both sides are the same")
        indents = {at: indent for at in range(len(lines)) if (indent := _indent_at(lines, at, old)) is not None}
        if len(indents) != 1:
            raise ChangeError(f"{self}: the old text is there {len(indents)} times, expected once")
        ((at, indent),) = indents.items()
        return at, indent

    def __str__(self) -> str:
        old, new = (" | ".join(line.strip() for line in _lines(text)) or "(nothing)" for text in (self.old, self.new))
        return f"{self.file}: {old} -> {new}"


@dataclass(frozen=True)
class Marking:
    """One promise that a test checks, the changes under which the test must fail, and whose tests may fail as well."""

    invariant: str
    breaks: tuple[Change, ...] = ()
    kin: tuple[str, ...] = ()


def invariant(
    name: str, *, breaks: Change | tuple[Change, ...] = (), kin: tuple[str, ...] = ()
) -> Callable[[Marked], Marked]:
    """Marks a test, a function or a class, as one of promise `name`. Can be repeated for further promises.

    Under each change in `breaks` the test must fail, and of the other tests only those of this promise and of `kin`
    may.
    """
    others = tuple(one for one in kin if one != name)  # one list of kin may serve several promises
    marking = Marking(name, (breaks,) if isinstance(breaks, Change) else tuple(breaks), others)

    def mark(test: Marked) -> Marked:
        setattr(test, _MARKINGS, (marking, *markings_of(test)))
        return test

    return mark


def markings_of(test: object) -> tuple[Marking, ...]:
    """What a test was marked with, in the order in which it is written above the test."""
    found = getattr(test, _MARKINGS, ())
    return found if isinstance(found, tuple) else ()


def _lines(text: str) -> list[str]:
    return textwrap.dedent(text.strip("\n")).rstrip().splitlines()


def _indent_at(lines: list[str], at: int, old: list[str]) -> str | None:
    """The indentation with which `old` stands at that line; None if it does not."""
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    there = lines[at : at + len(old)]
    return indent if there == [indent + line if line else line for line in old] else None
