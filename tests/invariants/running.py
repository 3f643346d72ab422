"""Copies of the tree, the zygotes that test them, and the order of it all."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from tests.invariants import zygote
from tests.invariants.judging import Run, suspects
from tests.invariants.listing import ROOT, Listed, Mutant, changed
from tests.invariants.preloaded import PRELOADED
from tests.invariants.probing import probed
from tests.invariants.wire import End, Job, Message, base

COPIED = ("engine", "harness", "scenarios", "tests", "pyproject.toml")
"""What the tests need of the project."""

MORE_TRIES = 2
"""How often a test that should not have failed is tried again; its failure counts unless it passes each time."""

Task = TypeVar("Task")
Result = TypeVar("Result")

_LEAVE_LIMIT = 20.0
_decode = msgspec.json.Decoder(Message).decode


class LabError(Exception):
    """The runs cannot go on."""


class Lab:
    """A temporary folder with a copy of the tree for each change, and zygotes that run the tests there.

    A context manager: at its end every process is gone, and the folder unless `keep`. The tree itself is only read.
    Unless `thorough`, tests that may fail under a change without its being a fault are not run under it, and others
    with one set of parameters.
    """

    def __init__(
        self, jobs: int, limit: float, *, keep: bool = False, thorough: bool = False, root: Path = ROOT
    ) -> None:
        # Short: sockets are made further down, and their paths must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="inv-")).resolve()
        self._limit = limit
        self._keep = keep
        self._thorough = thorough
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

    def unchanged(self, mutants: Sequence[Mutant], listed: Sequence[Listed]) -> Run:
        """All tests with no change made, but probes where changes will be made: each test says which it passed."""
        parts = [[test.node for test in listed[part :: len(self._zygotes)]] for part in range(len(self._zygotes))]
        run = Run()
        began = time.monotonic()
        for part in self._each(
            [part for part in parts if part], lambda process, part: self._probe(process, part, mutants)
        ):
            run.merge(part)
        run.seconds = time.monotonic() - began
        return run

    def changed(
        self, mutants: Sequence[Mutant], listed: Sequence[Listed], unchanged: Run
    ) -> Iterator[tuple[Mutant, Run]]:
        """Each change with what happened under it, as the runs end; as many at once as there are zygotes.

        Only tests that passed its probe in the `unchanged` run are run under it.
        """

        def work(process: subprocess.Popen[bytes], number: int) -> tuple[Mutant, Run]:
            mutant = mutants[number]
            reaching = [ran.test for ran in unchanged.tests if number in ran.reached]
            first, then = _order(mutant, listed, reaching, thorough=self._thorough)
            change = functools.partial(_change, mutant)
            run = self._run(process, change, first, then)
            self._try_again(process, change, run, suspects(mutant, run, listed))
            return mutant, run

        return self._each(range(len(mutants)), work)

    def _each(self, tasks: Sequence[Task], work: Callable[[subprocess.Popen[bytes], Task], Result]) -> Iterator[Result]:
        """What `work` makes of each task, as it ends; every zygote has one at a time."""
        waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
        ended: queue.SimpleQueue[tuple[Result] | BaseException] = queue.SimpleQueue()
        for task in tasks:
            waiting.put(task)

        def go(process: subprocess.Popen[bytes]) -> None:
            try:
                while True:
                    ended.put((work(process, waiting.get_nowait()),))
            except queue.Empty:
                return
            except BaseException as error:
                ended.put(error)

        self._threads = [threading.Thread(target=go, args=(process,), daemon=True) for process in self._zygotes]
        for thread in self._threads:
            thread.start()
        for _ in tasks:
            one = ended.get()
            if isinstance(one, BaseException):
                raise one
            yield one[0]

    def _probe(self, process: subprocess.Popen[bytes], nodes: list[str], mutants: Sequence[Mutant]) -> Run:
        on_import: set[int] = set()
        run = self._run(process, lambda folder: on_import.update(_probe(mutants, folder)), [], nodes)
        for ran in run.tests:
            ran.reached = sorted({*ran.reached, *on_import})
        self._try_again(process, lambda folder: None, run, suspects(None, run, []))
        return run

    def _try_again(
        self, process: subprocess.Popen[bytes], prepare: Callable[[Path], None], run: Run, tests: list[str]
    ) -> None:
        """Tells failures that were made by a busy machine from those that a change makes: these come again."""
        for _ in range(MORE_TRIES if tests else 0):
            again = self._run(process, prepare, [], tests)
            run.seconds += again.seconds
            passed = {ran.test for ran in again.tests if ran.outcome == "passed"}
            tests = [test for test in tests if test in passed]
        for test in tests:
            run.excuse(test)

    def _run(
        self, process: subprocess.Popen[bytes], prepare: Callable[[Path], None], first: list[str], then: list[str]
    ) -> Run:
        began = time.monotonic()
        folder = self.folder / str(next(self._numbers))
        log = Path(f"{folder}.log")
        run = Run()
        try:
            _copy(self._source, folder)
            prepare(folder)
            for message in _ask(process, Job(str(folder), str(log), first, then, self._limit)):
                run.note(message)
            run.add_log(log.read_text(encoding="utf-8", errors="replace"))
        finally:
            if not self._keep:
                for path in (folder, Path(f"{folder}.t")):
                    shutil.rmtree(path, ignore_errors=True)
                for path in (log, Path(f"{folder}.reached")):
                    path.unlink(missing_ok=True)
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


def _change(mutant: Mutant, folder: Path) -> None:
    text = changed(mutant.change, folder)
    (folder / mutant.change.file).write_text(text, encoding="utf-8")


def _probe(mutants: Sequence[Mutant], folder: Path) -> set[int]:
    """Puts a probe before every change; returns the numbers of those that every test passes."""
    on_import = set()
    for file in {mutant.change.file for mutant in mutants}:
        changes = {number: mutant.change for number, mutant in enumerate(mutants) if mutant.change.file == file}
        text, always = probed((folder / file).read_text(encoding="utf-8"), changes)
        (folder / file).write_text(text, encoding="utf-8")
        on_import |= always
    Path(f"{folder}.reached").write_bytes(bytes(len(mutants)))
    return on_import


def _order(
    mutant: Mutant, listed: Sequence[Listed], reaching: Sequence[str], *, thorough: bool
) -> tuple[list[str], list[str]]:
    """Of the tests that reach it those that must fail, and then the others: first those that may fail too, if at all.

    A test that must fail is run with all its parameters until it does, even if they do not reach the change.
    """
    first = [node for test in mutant.tests for node in [*(one for one in reaching if base(one) == test), test]]
    may_fail = {test.node for test in listed if not {*mutant.invariants, *mutant.kin}.isdisjoint(test.invariants)}
    others = [node for node in reaching if base(node) not in mutant.tests]
    must_not = [node for node in others if base(node) not in may_fail]
    if not thorough:
        return first, list({base(node): node for node in reversed(must_not)}.values())
    return first, [node for node in others if base(node) in may_fail] + must_not
