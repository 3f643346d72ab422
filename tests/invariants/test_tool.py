"""The tool that tries the changes: what it takes for a change, for a failed test, for a good result; what it leaves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from tests.invariants import listing, marking
from tests.invariants.__main__ import invoke
from tests.invariants.judging import Run, judge, judge_unchanged, suspects
from tests.invariants.listing import Listed, Mutant, gaps, mistakes, mutants
from tests.invariants.marking import Change, ChangeError, Marking
from tests.invariants.probing import probed
from tests.invariants.statements import STATEMENTS
from tests.invariants.wire import Broken, Ran, Served, base

SOURCE = """\
class Door:
    def open(self) -> None:
        if self.locked:
            raise ValueError
        self.shut = False

    def close(self) -> None:
        self.shut = True
        if self.locked:
            return
"""
FILE = "engine/door.py"
SHUT = Change(FILE, "self.shut = True", "pass")
OPEN = Change(FILE, "self.shut = False", "pass")


@pytest.mark.parametrize(
    ("old", "new", "before", "after"),
    [
        ("self.shut = True", "pass", "        self.shut = True\n", "        pass\n"),
        ("  raise ValueError\n", "return", "            raise ValueError\n", "            return\n"),
        ("self.shut = True", "", "        self.shut = True\n", ""),
        ("self.shut = True", "if now:\n    go()", "        self.shut = True\n", "        if now:\n            go()\n"),
        (
            "\n    if self.locked:\n        return\n",
            "\n    if self.locked:\n        pass\n",
            "            return\n",
            "            pass\n",
        ),
    ],
)
def test_a_change_takes_whole_lines_at_whatever_indentation(old: str, new: str, before: str, after: str) -> None:
    assert SOURCE.count(before) == 1
    assert Change(FILE, old, new).applied(SOURCE) == SOURCE.replace(before, after)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("if self.locked:", "if True:", "2 times, expected once"),
        ("self.shut", "pass", "0 times, expected once"),
        ("if self.locked:\nraise ValueError", "pass", "0 times, expected once"),
        ("return", "return", "both sides are the same"),
        ("", "pass", "expected 1 to 4 old lines"),
        ("return", "pass\n" * 5, "at most 4 new"),
    ],
)
def test_a_change_that_cannot_be_made_says_why(old: str, new: str, why: str) -> None:
    with pytest.raises(ChangeError, match=why):
        Change(FILE, old, new).applied(SOURCE)


def test_markings_stand_in_the_order_in_which_they_are_written() -> None:
    @marking.invariant("I1", breaks=SHUT, kin=("I3",))
    @marking.invariant("I2", breaks=(OPEN, SHUT))
    def test() -> None: ...

    assert marking.markings_of(test) == (Marking("I1", (SHUT,), ("I3",)), Marking("I2", (OPEN, SHUT)))
    assert marking.markings_of(base) == ()


def listed(node: str, *markings: Marking) -> Listed:
    return Listed(f"tests/test_door.py::{node}", markings)


ONE = listed("test_one", Marking("I10", (SHUT,), ("I3",)))
TWO = listed("test_two", Marking("I2", (OPEN, SHUT)), Marking("I4"))
ELSE = listed("test_else", Marking("I3"))
OTHER = listed("test_other", Marking("I5"))
ALL = [ONE, TWO, ELSE, OTHER]
BOTH = Mutant(SHUT, ("I2", "I10"), (ONE.node, TWO.node), ("I3",))
LAST = Mutant(OPEN, ("I2",), (TWO.node,), ())


def test_a_change_that_several_tests_list_is_tried_once() -> None:
    assert mutants(ALL) == [BOTH, LAST]
    assert mutants(ALL, ["I10"]) == [BOTH]
    assert mutants(ALL, ["I2", "I4"]) == [BOTH, LAST]
    assert mutants(ALL, ["I5"]) == []


def test_gaps_are_promises_that_are_neither_tested_nor_explained_or_both() -> None:
    rest = dict.fromkeys([name for name in STATEMENTS if name not in ("I2", "I10")], "why")
    found = [listed("test", Marking("I2", (SHUT,)), Marking("I10", (OPEN,)))]
    assert gaps(found, rest) == []
    assert gaps(found, {**rest, "I2": "why"}) == ["I2: tested, and listed as having no counterpart"]
    assert gaps(found, {**rest, "I3": " ", "I77": "why"}) == [
        "I3: listed as having no counterpart, without a reason",
        "I77: listed as having no counterpart, and unknown",
    ]
    assert gaps([listed("test", Marking("I2"))], rest) == [
        "I10: no test, and no reason for having none",
        "I2: tests, and none lists a change",
    ]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (Marking("I99"), "no such invariant"),
        (Marking("I1", (SHUT,), ("I99",)), "kin I99: expected another invariant that has tests"),
        (Marking("I1", (SHUT,), ("I1",)), "kin I1: expected"),
        (Marking("I1", (SHUT,), ("I19",)), "kin I19: expected"),
        (Marking("I1", (), ("I2",)), "kin is said of a change"),
        (Marking("I1", (Change(FILE, "return", "return)"),)), "does not compile"),
        (Marking("I1", (Change(FILE, "if self.locked:", "if True:"),)), "2 times, expected once"),
        (Marking("I1", (Change("engine/window.py", "a", "b"),)), "cannot be read: No such file"),
        (Marking("I1", (Change("tests/test_door.py", "a", "b"),)), "expected a file below engine/"),
    ],
)
def test_a_wrong_marking_is_told_with_its_test_and_promise(wrong: Marking, why: str, tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / FILE).write_text(SOURCE, encoding="utf-8")
    (mistake,) = mistakes([listed("test_it", wrong)], tmp_path, {"I19": "why"})
    assert mistake.startswith(f"tests/test_door.py::test_it ({wrong.invariant}): ")
    assert why in mistake
    assert mistakes([ONE, TWO], tmp_path) == []


def test_a_test_is_known_by_its_id_without_parameters() -> None:
    assert base("tests/test_door.py::test_it[a::b-[c]]") == "tests/test_door.py::test_it"
    assert base("tests/test_door.py::TestMachine::runTest") == "tests/test_door.py::TestMachine"


def heard(*failed: str, served: bool = True, problem: str = "") -> Run:
    run = Run()
    run.note(Served(served, "" if served else "no answer"))
    for test in ALL:
        name = test.node.rpartition("::")[2]
        run.note(Ran(f"{test.node}[1]", "passed", "", 0.1))
        run.note(Ran(f"{test.node}[2]", "failed" if name in failed else "passed", f"{name} says no", 0.1))
    if problem:
        run.note(Broken(problem))
    return run


@pytest.mark.parametrize(
    ("run", "word", "faults"),
    [
        (heard("test_one", "test_two"), "noticed", ()),
        (heard("test_one", "test_two", "test_else"), "noticed", ()),
        (heard("test_two"), "unnoticed", ("tests/test_door.py::test_one lists this change and did not fail",)),
        (
            heard("test_one", "test_two", "test_other"),
            "strayed",
            ("tests/test_door.py::test_other[2] (I5): test_other says no",),
        ),
        (heard("test_one", "test_two", served=False), "unhealthy", ("a healthy request was not served: no answer",)),
        (heard("test_one", "test_two", problem="no tests"), "broken", ("no tests",)),
        (Run(), "broken", ("the run ended before a request was tried",)),
    ],
)
def test_a_change_is_good_if_a_request_is_served_and_the_right_tests_fail(
    run: Run, word: str, faults: tuple[str, ...]
) -> None:
    verdict = judge(BOTH, run, ALL)
    assert (verdict.word, verdict.faults, verdict.good) == (word, faults, not faults)


def test_only_what_should_not_have_failed_is_tried_again() -> None:
    run = heard("test_one", "test_two", "test_else", "test_other")
    assert suspects(BOTH, run, ALL) == ["tests/test_door.py::test_other[2]"]
    assert len(suspects(None, run, ALL)) == 4
    run.excuse("tests/test_door.py::test_other[2]")
    assert judge(BOTH, run, ALL).word == "noticed"
    assert [ran.test for ran in run.shaky()] == ["tests/test_door.py::test_other[2]"]


def test_without_a_change_all_must_pass() -> None:
    assert judge_unchanged(heard()).word == "green"
    assert judge_unchanged(heard("test_two")).faults == ("tests/test_door.py::test_two[2] failed: test_two says no",)
    skipped = heard()
    skipped.note(Ran("tests/test_door.py::test_one", "skipped", "not here", 0.1))
    assert judge_unchanged(skipped).faults == ("tests/test_door.py::test_one skipped: not here",)
    assert judge_unchanged(heard(served=False)).word == "unhealthy"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (["--only", "I99"], "--only I99: expected one of I1 to I44"),
        (["--only", "I19"], "--only I19: it has no counterpart here: "),
        (["--jobs", "0"], "--jobs"),
        (["--change", "no such line"], "no test lists a change for 'no such line'"),
        (["--nothing"], "No such option: --nothing"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(line: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(line) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert what in err


HEALTHY = """
    LIMIT = 5.0

    def serve(then):
        from engine import thing
        if thing.double(2) != 4:
            raise ValueError("not 4")
        then()
"""

THING = """
    import os

    def double(x):
        return 2 * x

    def halve(x):
        return x / 2

    def wait():
        return None

    def place():
        return "here"

    def unused():
        return 1
"""

TESTS = """
    import os, pathlib, subprocess, sys
    from engine import thing
    from tests.invariants import Change, invariant

    def change(old, new):
        return Change("engine/thing.py", old, new)

    @invariant("I1", breaks=change("return x / 2", "return x"))
    def test_halves(tmp_path):
        assert thing.__file__.startswith(os.getcwd())
        assert thing.halve(4) == 2

    @invariant("I2", breaks=change("return None", "import time; time.sleep(600)"))
    def test_waits():
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        with pathlib.Path(FOLDER, "pids").open("a") as pids:
            pids.write(f"{left.pid} {os.getpid()}\\n")
        thing.wait()

    @invariant("I3", breaks=change("return 2 * x", "return 3 * x"))
    def test_doubles():
        assert thing.double(3) == 6

    @invariant("I4", breaks=change('return "here"', 'return "there"'))
    @invariant("I1")
    def test_place():
        assert thing.place() == "here"

    @invariant("I5", breaks=change("return 1", "return 2"))
    def test_place_too():
        assert thing.place() == "here"

    @invariant("I7")
    def test_shakes():
        tried = pathlib.Path(FOLDER, "tried")
        first = not tried.exists() and thing.halve(4) == 4
        if first:
            tried.touch()
        assert not first

    @invariant("I6", breaks=change("return 2 * x", "return 2 * x if x == 2 else os._exit(3)"), kin=("I3",))
    def test_fails_in_its_own_process():
        thing.double(3)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small project with this tool in it; temporary files of the tool go to its folder ``t``."""
    root = tmp_path / "p"
    shutil.copytree(Path(listing.__file__).parent, root / "tests/invariants", ignore=shutil.ignore_patterns("test_*"))
    (root / "tests/invariants/conftest.py").unlink()
    (root / "engine").mkdir()
    (root / "t").mkdir()
    for name, text in (
        ("tests/__init__.py", ""),
        ("tests/invariants/healthy.py", HEALTHY),
        ("tests/invariants/preloaded.py", "PRELOADED = ('pytest', 'hypothesis')\n"),
        ("tests/test_thing.py", TESTS.replace("FOLDER", repr(str(root)))),
        ("engine/__init__.py", ""),
        ("engine/thing.py", THING),
        ("pyproject.toml", "[tool.pytest.ini_options]\n"),
    ):
        (root / name).write_text(textwrap.dedent(text), encoding="utf-8")
    return root


def start(project: Path, *options: str) -> subprocess.Popen[str]:
    chosen = [word for number in range(1, 7) for word in ("--only", f"I{number}")]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.invariants", *chosen, *options],
        cwd=project,
        env={**os.environ, "TMPDIR": str(project / "t")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def assert_nothing_is_left(project: Path) -> None:
    assert list((project / "t").iterdir()) == []
    pids = (project / "pids").read_text(encoding="utf-8").split()
    assert len(pids) >= 2
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def test_each_change_is_tried_in_a_copy_and_nothing_is_left(project: Path) -> None:
    process = start(project, "--json", "--limit", "2")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    result: dict[str, Any] = json.loads(out)
    assert result["unchanged"]["verdict"] == "green"
    verdicts = {(*one["invariants"], one["change"]["new"]): one for one in result["changes"]}
    assert {key[0]: one["verdict"] for key, one in verdicts.items()} == {
        "I1": "noticed",
        "I2": "noticed",
        "I3": "unhealthy",
        "I4": "strayed",
        "I5": "unnoticed",
        "I6": "noticed",
    }
    failed = {key[0]: one["failed"] for key, one in verdicts.items()}
    assert {key[0]: one["shaky"] for key, one in verdicts.items() if one["shaky"]} == {
        "I1": {"tests/test_thing.py::test_shakes": "assert not True"}
    }
    assert failed["I2"] == {"tests/test_thing.py::test_waits": "hung, and was killed at its limit"}
    assert failed["I6"] == {"tests/test_thing.py::test_fails_in_its_own_process": "the process ended with 3"}
    # Nothing is run that does not come by the change, or that may fail, but what must fail is.
    assert {key[0]: one["runs"] for key, one in verdicts.items()} == {
        "I1": 2,
        "I2": 1,
        "I3": 0,
        "I4": 2,
        "I5": 1,
        "I6": 1,
    }
    assert (project / "engine/thing.py").read_text(encoding="utf-8").count("return") == 5
    assert_nothing_is_left(project)


def test_a_thorough_run_has_the_tests_that_may_fail_too(project: Path) -> None:
    process = start(project, "--json", "--thorough", "--limit", "2")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    (one,) = [one for one in json.loads(out)["changes"] if one["invariants"] == ["I6"]]
    assert (one["verdict"], one["runs"]) == ("noticed", 2)
    assert one["failed"] == {
        "tests/test_thing.py::test_fails_in_its_own_process": "the process ended with 3",
        "tests/test_thing.py::test_doubles": "the process ended with 3",
    }


def test_ctrl_c_leaves_nothing(project: Path) -> None:
    process = start(project, "--jobs", "1")
    until = time.monotonic() + 30
    path = project / "pids"
    while not path.exists() or len(path.read_text(encoding="utf-8").splitlines()) < 2:  # the second one hangs
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err == "invariants: interrupted\n"
    assert_nothing_is_left(project)


LONG = """\
\"\"\"About it.\"\"\"
from __future__ import annotations

LIMIT = 4

@decorated
def double(
    x=1,
):
    if x == 1:
        return f(
            2,
            3,
        )
    elif x == 2:
        return 4
    try:
        return g()
    except ValueError:
        return 0
"""


@pytest.mark.parametrize(
    ("old", "passed"),
    [
        ("LIMIT = 4", None),
        ("x=1,", None),
        ("@decorated", None),
        ("3,", "_reached(7)\n        return f(2, 3)"),
        ("elif x == 2:", "else:\n        _reached(7)\n        if x == 2:"),
        ("except ValueError:", "_reached(7)\n    try:"),
        ("return 0", "_reached(7)\n        return 0"),
        ("if x == 1:\n    return f(", "_reached(7)\n    if x == 1:"),
    ],
)
def test_a_probe_stands_before_the_innermost_statement_around_the_change(old: str, passed: str | None) -> None:
    text, on_import = probed(LONG, {7: Change(FILE, old, "pass")})
    compile(text, FILE, "exec")
    assert on_import == (set() if passed else {7})
    assert text.startswith('"""About it."""\nfrom __future__ import annotations\n')
    assert (passed or "LIMIT = 4") in text
    assert text.count("_reached(7)") == (1 if passed else 0)
