"""Which tests check which promise, and the changes that they list."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.invariants.marking import Change, ChangeError, Marking, markings_of
from tests.invariants.statements import STATEMENTS
from tests.invariants.without import WITHOUT

ROOT = Path(__file__).resolve().parents[2]
"""The root of the project."""

CHANGEABLE = "engine/"
"""Where a change may be made: what is tested, never the tests."""


@dataclass(frozen=True)
class Listed:
    """A test that checks at least one promise. `node` is pytest's id of it, without parameters."""

    node: str
    markings: tuple[Marking, ...]

    @property
    def invariants(self) -> tuple[str, ...]:
        return tuple(marking.invariant for marking in self.markings)


@dataclass(frozen=True)
class Mutant:
    """One change with all that is claimed of it."""

    change: Change
    invariants: tuple[str, ...]
    """The promises that it breaks."""
    tests: tuple[str, ...]
    """Each of these must fail under it."""
    kin: tuple[str, ...]
    """Promises whose tests may fail as well."""


def discover(root: Path = ROOT) -> list[Listed]:
    """All marked tests under `root`, by file and then as they stand there."""
    found = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        if "tests.invariants" not in path.read_text(encoding="utf-8"):
            continue
        relative = path.relative_to(root)
        name = ".".join(relative.with_suffix("").parts)
        for attribute, test in vars(importlib.import_module(name)).items():
            if attribute.lower().startswith("test") and (markings := markings_of(test)):
                ours = inspect.isclass(test) or getattr(test, "__module__", name) == name
                found += [Listed(f"{relative.as_posix()}::{attribute}", markings)] if ours else []
    return found


def mutants(listed: Sequence[Listed], only: Collection[str] = ()) -> list[Mutant]:
    """The changes in the order of the promises that they break, each once; with `only`, those of these promises."""
    claims: dict[Change, list[tuple[str, Marking]]] = {}
    for test in listed:
        for marking in test.markings:
            for change in marking.breaks:
                claims.setdefault(change, []).append((test.node, marking))
    made = [
        Mutant(
            change,
            tuple(sorted({marking.invariant for _, marking in theirs}, key=number)),
            tuple(dict.fromkeys(node for node, _ in theirs)),
            tuple(sorted({name for _, marking in theirs for name in marking.kin}, key=number)),
        )
        for change, theirs in claims.items()
    ]
    wanted = [mutant for mutant in made if not only or not set(only).isdisjoint(mutant.invariants)]
    return sorted(wanted, key=lambda mutant: number(mutant.invariants[0]))


def number(name: str) -> int:
    """For sorting: 10 for I10; names that are none come first."""
    return int(name[1:]) if name[1:].isdecimal() else 0


def gaps(listed: Sequence[Listed], without: Mapping[str, str] = WITHOUT) -> list[str]:
    """For which promises something is missing: each needs tests and a change, or a reason for having none."""
    tested = {name for test in listed for name in test.invariants}
    broken = {marking.invariant for test in listed for marking in test.markings if marking.breaks}
    kinds = {
        "tested, and listed as having no counterpart": [name for name in without if name in tested],
        "listed as having no counterpart, without a reason": [name for name in without if not without[name].strip()],
        "listed as having no counterpart, and unknown": [name for name in without if name not in STATEMENTS],
        "no test, and no reason for having none": [name for name in STATEMENTS if name not in {*tested, *without}],
        "tests, and none lists a change": [name for name in STATEMENTS if name in tested - broken],
    }
    return [f"{', '.join(names)}: {what}" for what, names in kinds.items() if names]


def mistakes(listed: Sequence[Listed], root: Path = ROOT, without: Mapping[str, str] = WITHOUT) -> list[str]:
    """What is wrong with the markings, a sentence each, with test and promise."""
    return [
        f"{test.node} ({marking.invariant}): {what}"
        for test in listed
        for marking in test.markings
        for what in _mistakes(marking, root, without)
    ]


def _mistakes(marking: Marking, root: Path, without: Mapping[str, str]) -> list[str]:
    found = []
    if marking.invariant not in STATEMENTS:
        found.append("no such invariant")
    for name in marking.kin:
        if name not in STATEMENTS or name in without or name == marking.invariant:
            found.append(f"kin {name}: expected another invariant that has tests")
    if marking.kin and not marking.breaks:
        found.append("kin is said of a change, and there is none")
    for change in marking.breaks:
        try:
            compile(changed(change, root), change.file, "exec")
        except ChangeError as error:
            found.append(str(error))
        except SyntaxError as error:
            found.append(f"{change}: does not compile: {error}")
    return found


def changed(change: Change, root: Path) -> str:
    """The changed text of that file under `root`. Raises :class:`ChangeError`."""
    if not change.file.startswith(CHANGEABLE):
        raise ChangeError(f"{change}: expected a file below {CHANGEABLE}")
    try:
        source = (root / change.file).read_text(encoding="utf-8")
    except OSError as error:
        raise ChangeError(f"{change}: the file cannot be read: {error.strerror}") from None
    return change.applied(source)
