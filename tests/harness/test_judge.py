"""Verdicts: what outranks what, and which runs prove nothing."""

from __future__ import annotations

import msgspec
import pytest

from harness import history as histories
from harness.faults import Delay
from harness.history import HistoryError
from harness.instant import Instant
from harness.judge import judge
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
