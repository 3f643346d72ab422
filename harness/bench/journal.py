"""A journal of runs that are done, so that a long benchmark goes on where it was interrupted.

One JSON line per run, written and flushed as soon as the run is judged. A line counts only for the code that made it:
each carries a digest of the engine's and the harness's sources.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import msgspec
from msgspec import Struct

from harness.bench import BenchError


class Entry(Struct, frozen=True):
    """One run: the plan's digest, which of its runs, and what came of it in the benchmark's own words."""

    plan: str
    run: int
    code: str
    told: str


class Journal:
    """The file of one benchmark. Raises BenchError if it cannot be read or written."""

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self._code = code_digest()
        self._told: dict[tuple[str, int], str] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for entry in () if fresh else _entries(path):
                if entry.code == self._code:
                    self._told[entry.plan, entry.run] = entry.told
            self._file: IO[bytes] = path.open("wb" if fresh else "ab")
            if self._file.tell() and not path.read_bytes().endswith(b"\n"):
                self._file.write(b"\n")  # after a line that a kill has cut short
        except OSError as error:
            raise BenchError(f"cannot use {path}: {error.strerror or error}") from None

    def told(self, plan: str, run: int) -> str | None:
        """What came of that run, None if it is not done."""
        return self._told.get((plan, run))

    def add(self, plan: str, run: int, told: str) -> None:
        """The run is done."""
        self._told[plan, run] = told
        self._file.write(msgspec.json.encode(Entry(plan, run, self._code, told)) + b"\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def code_digest() -> str:
    """A digest of every Python file of the engine, the harness and the scenarios."""
    digest = hashlib.blake2b(digest_size=8)
    for package in ("engine", "harness", "scenarios"):
        for name, data in _sources(resources.files(package), package):
            digest.update(f"{name} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def _sources(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        path = f"{name}/{entry.name}"
        if entry.is_dir():
            yield from _sources(entry, path)
        elif entry.name.endswith((".py", ".toml")):
            yield path, entry.read_bytes()


def _entries(path: Path) -> Iterator[Entry]:
    """The lines of a journal; a last one that was cut short by a kill is left out."""
    if not path.exists():
        return
    for line in path.read_bytes().splitlines():
        try:
            yield msgspec.json.decode(line, type=Entry)
        except msgspec.MsgspecError:
            continue
