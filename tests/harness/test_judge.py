"""Verdicts: what outranks what, and which runs prove nothing."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from harness import history as histories
from harness.faults import Delay
from harness.history import HistoryError
from harness.instant import Instant
from harness.judge import judge
from harness.plan import EngineOptions, Plan, PlanError
from harness.verdict import Verdict, exit_code
from tests.harness.synthetic import history, mark, process, request

DELAY = Delay(Instant.parse("dp0.rank1:start"), 0.1)
OPTIONAL = msgspec.structs.replace(DELAY, optional=True)
SERVED = [mark(1, "startup", "begin"), mark(5, "startup", "ready"), *request(10, (7, 8))]


def test_a_served_run_passed_and_counts_its_requests() -> None:
    verdict = judge(history(SERVED, faults=[DELAY], fired=[1]))
    assert (verdict.word, verdict.exit_code, verdict.served, verdict.refused) == ("passed", 0, 1, 0)


@pytest.mark.parametrize(
    ("faults", "fired", "word"),
    [
        ([DELAY], [0], "vacuous"),
        ([DELAY, OPTIONAL], [0, 1], "vacuous"),
        ([DELAY, OPTIONAL], [1, 0], "passed"),
        ([OPTIONAL], [0], "vacuous"),
        ([OPTIONAL, OPTIONAL], [0, 1], "passed"),
        ([], [], "passed"),
    ],
)
def test_a_run_whose_faults_did_not_fire_is_vacuous(faults: list[Delay], fired: list[int], word: str) -> None:
    assert judge(history(SERVED, faults=faults, fired=fired)).word == word


def test_a_violation_outranks_vacuity() -> None:
    verdict = judge(history([mark(10, "request.sent", number=0)], faults=[DELAY], fired=[0]))
    assert (verdict.word, verdict.exit_code) == ("violated", 1)
    assert verdict.fingerprint == "TERM:client"


def test_a_spent_budget_is_no_violation() -> None:
    processes = [process("client", -9, "cleanup")]
    verdict = judge(history([mark(10, "request.sent", number=0)], ended="budget", processes=processes))
    assert (verdict.word, verdict.exit_code) == ("budget", 4)


def test_lost_events_leave_a_run_unjudged() -> None:
    lossy = msgspec.structs.replace(history(SERVED), lost_events=3)
    assert judge(lossy).word == "budget"


def test_several_verdicts_end_with_the_worst_exit_code() -> None:
    def one(word: str, grade: str | None = None) -> Verdict:
        return Verdict(verdict=word, grade=grade, plan={}, digest="", target="engine")  # type: ignore[arg-type]

    assert exit_code([]) == 0
    assert exit_code([one("passed"), one("vacuous")]) == 3
    assert exit_code([one("vacuous"), one("wedged", "suspected")]) == 4
    assert exit_code([one("budget"), one("wedged", "proved"), one("passed")]) == 1


def test_a_history_survives_its_file_and_gets_the_same_verdict() -> None:
    first = history(SERVED, faults=[DELAY], fired=[1])
    again = histories.load(histories.dump(first))
    assert again == first
    assert judge(again) == judge(first)


@pytest.mark.parametrize("data", [b"", b"{}", b"\x1f\x8b broken", histories.dump(history())[:60]])
def test_what_is_no_history_is_refused_in_one_sentence(data: bytes) -> None:
    with pytest.raises(HistoryError, match="not a saved history") as caught:
        histories.load(data)
    assert "\n" not in str(caught.value)


def test_a_history_with_any_byte_damaged_is_refused_or_the_same() -> None:
    data, whole = histories.dump(history(SERVED)), history(SERVED)
    complaints = []
    for at in range(len(data)):
        damaged = bytes([*data[:at], data[at] ^ 0xFF, *data[at + 1 :]])
        try:
            assert histories.load(damaged) == whole, at
        except HistoryError as error:
            complaints.append(str(error))
    assert len(complaints) > len(data) // 2
    assert not any("\n" in complaint for complaint in complaints)


def test_a_run_with_a_relay_of_a_plugin_is_judged_from_its_file_like_any_other() -> None:
    script = (
        "import sys\n"
        "from harness import history\n"
        "from harness.judge import judge\n"
        "print(judge(history.load(sys.stdin.buffer.read())).word)\n"
    )
    plan = Plan(engine=EngineOptions(relay="connected", plugins=("scenarios.bugs.connected",)))
    data = histories.dump(msgspec.structs.replace(history(SERVED), plan=plan))
    ended = subprocess.run([sys.executable, "-c", script], input=data, capture_output=True, timeout=60, check=True)
    assert ended.stdout.decode().strip() == "passed"


def test_a_run_with_a_plugin_that_is_gone_is_refused_in_one_sentence() -> None:
    plan = Plan(engine=EngineOptions(plugins=("scenarios.bugs.never_there",)))
    with pytest.raises(PlanError, match=r"^engine.plugins: cannot import 'scenarios.bugs.never_there'"):
        judge(msgspec.structs.replace(history(SERVED), plan=plan))
