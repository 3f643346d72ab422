"""Livelock: the same again and again to the end of the budget, while something is owed."""

from __future__ import annotations

from collections.abc import Sequence

from harness.history import Event
from harness.judge import judge
from harness.recurrence import ROUNDS, rounds
from tests.harness.synthetic import call, history, mark


def handshake(times: int, role: str = "dp0.rank0", start: int = 10) -> list[Event]:
    """So many rounds of a handshake."""
    found = []
    for one in range(times):
        t = start + 3 * one
        found += [call(t, role, "relay.send", kind="hello", n=one), call(t + 1, role, "tp.all_reduce", "before", n=one)]
        found.append(call(t + 2, role, "tp.all_reduce", n=one, number=one))
    return found


def spent(events: Sequence[Event]) -> list[Event]:
    return [mark(1, "startup", "begin"), call(2, "dp0.rank0", "relay.bind"), *events]


def test_the_same_again_and_again_is_a_suspected_wedge() -> None:
    made = history(spent(handshake(40)), ended="budget")
    (found,) = rounds(made)
    assert (found.role, set(found.calls), found.times) == ("dp0.rank0", {"relay.send[hello]", "tp.all_reduce"}, 40)
    verdict = judge(made)
    assert verdict.word == "wedged (suspected)"
    assert verdict.blame is not None
    assert verdict.blame.sentence.startswith("Rank 0 does the same again and again, and nothing that is owed gets on")
    assert verdict.blame.owed == ("startup of the engine",)


def test_whoever_has_not_done_it_often_enough_is_only_slow() -> None:
    assert rounds(history(spent(handshake(ROUNDS - 1)), ended="budget")) == ()
    assert judge(history(spent(handshake(ROUNDS - 1)), ended="budget")).word == "budget"


def test_one_thing_that_is_different_at_the_end_is_no_livelock() -> None:
    events = [*handshake(40), call(900, "dp0.rank0", "relay.send", kind="done")]
    assert rounds(history(spent(events), ended="budget")) == ()
    other = [*handshake(40), call(500, "dp0.rank1", "relay.recv", kind="hello")]
    assert rounds(history(spent(other), ended="budget")) == ()


def test_a_token_in_between_is_something_that_gets_on() -> None:
    events = [*handshake(40), mark(600, "request.token", number=0), *handshake(ROUNDS - 1, start=601)]
    assert rounds(history(spent(events), ended="budget")) == ()


def test_both_ranks_are_named() -> None:
    made = history(spent([*handshake(40), *handshake(40, "dp0.rank1")]), ended="budget")
    verdict = judge(made)
    assert verdict.blame is not None
    assert verdict.blame.sentence.startswith("Rank 0 and rank 1 do the same")
