"""START: a start-up ends once, in time, with an engine that is ready or an error that helps."""

from __future__ import annotations

import pytest

from harness.faults import Kill, Stop
from harness.instant import Instant
from tests.harness.synthetic import STARTED, call, mark, process, sentences

BEGUN = mark(1, "startup", "begin")
KILL = Kill(Instant.parse("dp0.rank1:relay.connect#1:before"))


def ended(text: str, kind: str = "failed", t: int = 200) -> list[str]:
    told = mark(t, "startup", kind, ok=False, text=text)
    return sentences("START", [BEGUN, told], faults=[KILL], fired=[1], cleanup=t + 100)


def test_a_start_that_ends_neither_way_is_found() -> None:
    assert sentences("START", STARTED) == []
    (found,) = sentences("START", [BEGUN])
    assert found == "the start-up ended neither with an engine that is ready nor with an error"


def test_a_start_that_ends_twice_is_found() -> None:
    again = mark(9, "startup", "failed", ok=False, text="StartupError|dp0.rank1|killed by SIGKILL")
    assert "the start-up ended 2 times" in sentences("START", [*STARTED, again])


def test_a_start_that_fails_says_so_by_its_own_error_with_role_and_cause() -> None:
    assert ended("StartupError|dp0.rank1|killed by SIGKILL") == []
    assert ended("EngineDeadError|dp0.rank1|killed by SIGKILL")
    assert ended("OSError||too many open files") == ["the start-up ended with OSError: too many open files"]
    assert ended("StartupError||killed by SIGKILL") == ["the start-up ended with an error that names no role"]
    assert ended("StartupError|dp0.rank1|") == ["the start-up ended with an error that names no cause"]


@pytest.mark.parametrize(("t", "found"), [(14_000, False), (15_000, True)])
def test_a_start_that_ends_too_late_is_found(t: int, found: bool) -> None:
    assert bool(ended("StartupError|dp0.rank1|killed by SIGKILL", t=t)) == found


def test_a_start_is_not_late_while_the_machine_or_the_client_stood_still() -> None:
    told = mark(15_000, "startup", "failed", ok=False, text="StartupError|dp0.rank1|it came too late")
    stop = Stop(Instant.parse("client:startup.bind#1:after"), 9.0)
    assert sentences("START", [BEGUN, told], cleanup=16_000)
    assert sentences("START", [BEGUN, told], cleanup=16_000, stalled=2.0) == []
    assert sentences("START", [BEGUN, told], cleanup=16_000, faults=[stop], fired=[1]) == []


@pytest.mark.parametrize(("site", "kind"), [("relay.send", "step"), ("output.send", "outputs")])
def test_work_before_readiness_is_found(site: str, kind: str) -> None:
    early = call(3, "dp0.rank0", site, "before", kind, 1, 1)
    assert sentences("START", [*STARTED, early]) == ["dp0.rank0 was at work before the engine was ready"]
    assert sentences("START", [*STARTED, call(7, "dp0.rank0", site, "before", kind, 1, 1)]) == []


def test_a_client_that_was_killed_owes_no_end() -> None:
    killed = [process("client", -9), process("dp0.rank0", 13), process("dp0.rank1", 13)]
    assert sentences("START", [BEGUN], processes=killed) == []
