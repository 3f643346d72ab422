"""The canary of a seeded bug: marks in the history that its code was executed, and that it did something wrong.

A bug that a hunt does not find was either never executed (`reached`), or executed without harm (`triggered`), or its
harm was not seen. Each mark is made once in each process at most, and nowhere but in a run: without a seam nothing
happens, and nothing is patched unless the process asks for it.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import TypeVar

from harness.seam import site as seams

REACHED, TRIGGERED = "bug.reached", "bug.triggered"

Replacement = TypeVar("Replacement")

_marked: set[tuple[str, str]] = set()
_marked_for: seams.Seam | None = None
_wanted = False


def reached(bug: str) -> None:
    """The code of the bug of that id is executed."""
    _mark(REACHED, bug)


def triggered(bug: str) -> None:
    """The code of the bug of that id does something else than the right code would have done."""
    _mark(TRIGGERED, bug)


def wanted() -> None:
    """Bugs that this process imports from now on are put in, although it belongs to no run.

    So does a program that looks for them without the harness. It makes no marks.
    """
    global _wanted
    _wanted = True


def patch(owner: object, name: str, *, role: str = "") -> Callable[[Replacement], Replacement]:
    """Decorator: puts a function in the place of that attribute in the processes of a run, or where bugs are `wanted`.

    With ``role`` only in the process of that role. What was there before has to be kept by whoever wants to call it.
    """

    def put(replacement: Replacement) -> Replacement:
        if (_wanted or seams.active() is not None) and role in ("", multiprocessing.current_process().name):
            setattr(owner, name, replacement)
        return replacement

    return put


def _mark(site: str, bug: str) -> None:
    global _marked_for
    seam = seams.active()
    if seam is None:
        return
    if seam is not _marked_for:
        _marked_for = seam
        _marked.clear()
    if (site, bug) not in _marked:
        _marked.add((site, bug))
        seam.mark(site, kind=bug)
