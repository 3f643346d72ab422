"""The marked tests in one copy of the tree, each in a process of its own, so that a hung one is one failed test.

Runs in the fork that the zygote made. First comes the healthy request, then the tests that must fail, then the others.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import msgspec
import pytest

from tests.invariants import healthy, reached
from tests.invariants.apart import Apart, apart
from tests.invariants.wire import Broken, Job, Message, Ran, Served, base
from tests.invariants.zygote import PROJECT, adopt_orphans

COLLECT_LIMIT = 60
"""Seconds to import the project and the tests."""

_LONGEST = 500
_BEFORE_LIMIT = 0.9
"""At this share of a test's limit the stacks of its threads are written to the log."""


class _BrokenError(Exception):
    """The copy cannot be tested."""


def main(raw: dict[str, Any], report: int) -> int:
    """Runs one job, writes its messages to `report`. Returns the exit code."""
    job = msgspec.convert(raw, Job)

    def say(message: Message) -> None:
        os.write(report, msgspec.json.encode(message) + b"\n")

    adopt_orphans()
    signal.alarm(COLLECT_LIMIT)  # without a handler: the process ends, and the zygote says by what
    session = Session(job, say)
    files = dict.fromkeys(node.partition("::")[0] for node in (*job.first, *job.then))
    options = ["-q", "-p", "no:cacheprovider", "--timeout=0", f"--rootdir={job.folder}", f"--basetemp={job.folder}.t/p"]
    options += ["-o", f"faulthandler_timeout={job.limit * _BEFORE_LIMIT}"]
    code = pytest.main([*options, *files], plugins=[session])
    if session.problem or code:
        say(Broken(session.problem or f"pytest ended with {int(code)}"))
    return 0


class Session:
    """A plugin of pytest that takes the place of its loop."""

    def __init__(self, job: Job, say: Callable[[Message], None]) -> None:
        self._job = job
        self._say = say
        self._failed: set[str] = set()
        self._reports: list[pytest.TestReport] = []
        self.problem = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        signal.alarm(0)
        try:
            if session.testsfailed:
                raise _BrokenError("the tests cannot be imported")
            first = self._select(session.items, self._job.first)
            then = self._select(session.items, self._job.then)
            _prove_origin(self._job.folder)
        except _BrokenError as error:
            self.problem = str(error)
            return True
        if self._serves():
            for item in first:
                self._run(item)
            if self._failed.issuperset(map(base, self._job.first)):
                for item in then:
                    self._run(item)
        return True

    def _select(self, items: Sequence[pytest.Item], wanted: Sequence[str]) -> list[pytest.Item]:
        chosen = []
        for node in wanted:
            found = [item for item in items if node in (item.nodeid, base(item.nodeid))]
            if not found:
                raise _BrokenError(f"{node} is not among the tests that pytest finds")
            chosen += found
        return chosen

    def _serves(self) -> bool:
        def serve(sink: int) -> None:
            def served() -> NoReturn:
                os.write(sink, b"served")
                os._exit(0)

            healthy.serve(served)

        end = apart(serve, healthy.LIMIT)
        served = end == Apart(b"served", 0)
        self._say(Served(served, "" if served else end.why))
        return served

    def _run(self, item: pytest.Item) -> None:
        if base(item.nodeid) in self._failed:
            return  # with other parameters: it has failed already

        def run(sink: int) -> None:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            os.write(sink, msgspec.json.encode([(report.outcome, _message(report)) for report in self._reports]))

        reached.take()
        began = time.monotonic()
        outcome, why = _outcome(apart(run, self._job.limit))
        if outcome == "failed":
            self._failed.add(base(item.nodeid))
        self._say(Ran(item.nodeid, outcome, why[:_LONGEST], time.monotonic() - began, reached.take()))


def _outcome(end: Apart) -> tuple[str, str]:
    """What the reports of set-up, call and tear-down come to; a process that ends without them is a failed test."""
    reports = msgspec.json.decode(end.written, type=list[tuple[str, str]]) if end.code == 0 else []
    if not reports:
        return "failed", end.why
    for wanted in ("failed", "skipped"):
        for outcome, why in reports:
            if outcome == wanted:
                return outcome, why
    return "passed", ""


def _message(report: pytest.TestReport) -> str:
    """The first line of an error."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(getattr(crash, "message", None) or report.longrepr or "").strip()
    return text.splitlines()[0] if text else ""


def _prove_origin(folder: str) -> None:
    """Raises if anything of the project comes from elsewhere than the copy, here or in a program started from here."""
    inside = os.path.join(os.path.realpath(folder), "")
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if name.partition(".")[0] in PROJECT and path and not os.path.realpath(path).startswith(inside):
            raise _BrokenError(f"{name} was imported from {path}, expected a file below {folder}")
    code = "import importlib.util; print(importlib.util.find_spec('engine').origin)"
    done = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=False)
    if not os.path.realpath(done.stdout.strip()).startswith(inside):
        raise _BrokenError(f"a new program imports {done.stdout.strip() or done.stderr}, expected one below {folder}")
