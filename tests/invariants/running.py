"""Copies of the tree, the zygotes that test them, and the order of it all."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from tests.invariants import zygote
from tests.invariants.judging import Run
from tests.invariants.listing import ROOT, Listed, Mutant, changed
from tests.invariants.preloaded import PRELOADED
from tests.invariants.wire import End, Job, Message

COPIED = ("engine", "harness", "scenarios", "tests", "pyproject.toml")
"""What the tests need of the project."""

_LEAVE_LIMIT = 20.0
_decode = msgspec.json.Decoder(Message).decode


class LabError(Exception):
    """The runs cannot go on."""


class Lab:
    """A temporary folder with a copy of the tree for each change, and zygotes that run the tests there.

    A context manager: at its end every process is gone, and the folder unless `keep`. The tree itself is only read.
    """

    def __init__(self, jobs: int, limit: float, *, keep: bool = False, root: Path = ROOT) -> None:
        # Short: sockets are made further down, and their paths must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="inv-")).resolve()
        self._limit = limit
        self._keep = keep
        self._source = self.folder / "source"
        self._numbers = itertools.count()
        self._zygotes: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []
        try:
            _copy(root, self._source)
            for _ in range(jobs):
                self._start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the zygotes, which end all below them, and removes the folder."""
        for process in self._zygotes:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        for process in self._zygotes:
            try:
                process.wait(_LEAVE_LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for thread in self._threads:
            thread.join(_LEAVE_LIMIT)
        if not self._keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def unchanged(self, listed: Sequence[Listed]) -> Run:
        """All tests with no change made."""
        return self._run(self._zygotes[0], None, [], [test.node for test in listed])

    def changed(self, mutants: Sequence[Mutant], listed: Sequence[Listed]) -> Iterator[tuple[Mutant, Run]]:
        """Each change with what happened under it, as the runs end; as many at once as there are zygotes."""
        waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
        ended: queue.SimpleQueue[tuple[Mutant, Run] | BaseException] = queue.SimpleQueue()
        for mutant in mutants:
            waiting.put(mutant)

        def work(process: subprocess.Popen[bytes]) -> None:
            try:
                while True:
                    mutant = waiting.get_nowait()
                    ended.put((mutant, self._run(process, mutant, *_order(mutant, listed))))
            except queue.Empty:
                return
            except BaseException as error:
                ended.put(error)

        self._threads = [threading.Thread(target=work, args=(process,), daemon=True) for process in self._zygotes]
        for thread in self._threads:
            thread.start()
        for _ in mutants:
            one = ended.get()
            if isinstance(one, BaseException):
                raise one
            yield one

    def _run(self, process: subprocess.Popen[bytes], mutant: Mutant | None, first: list[str], then: list[str]) -> Run:
        began = time.monotonic()
        folder = self.folder / str(next(self._numbers))
        log = Path(f"{folder}.log")
        run = Run()
        try:
            _copy(self._source, folder)
            if mutant is not None:
                text = changed(mutant.change, folder)
                (folder / mutant.change.file).write_text(text, encoding="utf-8")
            for message in _ask(process, Job(str(folder), str(log), first, then, self._limit)):
                run.note(message)
            run.add_log(log.read_text(encoding="utf-8", errors="replace"))
        finally:
            if not self._keep:
                for path in (folder, Path(f"{folder}.t")):
                    shutil.rmtree(path, ignore_errors=True)
                log.unlink(missing_ok=True)
        run.seconds = time.monotonic() - began
        return run

    def _start(self) -> None:
        self._zygotes.append(
            subprocess.Popen(
                [sys.executable, "-P", zygote.__file__, *PRELOADED],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                cwd=self.folder,
                start_new_session=True,
            )
        )


def _ask(process: subprocess.Popen[bytes], job: Job) -> Iterator[Message]:
    if process.stdin is None or process.stdout is None:
        raise LabError("a zygote has no pipes")
    try:
        process.stdin.write(msgspec.json.encode(job) + b"\n")
        process.stdin.flush()
    except (OSError, ValueError) as error:
        raise LabError(f"a zygote does not listen: {error}") from None
    for line in process.stdout:
        message = _decode(line)
        yield message
        if isinstance(message, End):
            return
    raise LabError(f"a zygote ended with {process.wait()}")


def _copy(source: Path, target: Path) -> None:
    target.mkdir()
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (source / name).exists():
            shutil.copy2(source / name, target / name)


def _order(mutant: Mutant, listed: Sequence[Listed]) -> tuple[list[str], list[str]]:
    """The tests that must fail, and then the others: first those of the same promise, which may fail too."""
    others = [test for test in listed if test.node not in mutant.tests]
    others.sort(key=lambda test: set(test.invariants).isdisjoint(mutant.invariants))
    return list(mutant.tests), [test.node for test in others]
