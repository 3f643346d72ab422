"""AGREE: all ranks do the same, in the same order, up to where the run ended."""

from __future__ import annotations

from harness.faults import Skip
from harness.history import Event
from harness.instant import Instant
from tests.harness.synthetic import STARTED, call, findings, process, sentences


def issued(role: str, *operations: str, first: int = 1, t: int = 20) -> list[Event]:
    """The collectives that a role issued, one each millisecond."""
    return [
        call(t + n, role, f"tp.{operation}", "before", number=first + n, n=n + 1)
        for n, operation in enumerate(operations)
    ]


SAME = ("all_reduce", "all_reduce", "all_gather")


def test_ranks_that_do_the_same_agree() -> None:
    assert sentences("AGREE", [*STARTED, *issued("dp0.rank0", *SAME), *issued("dp0.rank1", *SAME)]) == []


def test_another_operation_under_the_same_number_is_found() -> None:
    events = [*STARTED, *issued("dp0.rank0", *SAME), *issued("dp0.rank1", "all_reduce", "all_gather", "all_reduce")]
    (found,) = findings("AGREE", events)
    assert found.sentence == "dp0.rank1 issued tp.all_gather as tp #2, dp0.rank0 issued tp.all_reduce"
    assert found.event == "dp0.rank1:tp.all_gather#2:before"


def test_of_three_ranks_the_odd_one_is_named() -> None:
    events = [
        *issued("dp0.rank0", "all_gather"),
        *issued("dp0.rank1", "all_reduce"),
        *issued("dp0.rank2", "all_reduce"),
    ]
    (found,) = findings("AGREE", [*STARTED, *events], tp=3)
    assert found.role == "dp0.rank0"


def test_who_did_less_is_found_only_if_all_left_in_order() -> None:
    events = [*STARTED, *issued("dp0.rank0", *SAME), *issued("dp0.rank1", *SAME[:2])]
    (found,) = sentences("AGREE", events)
    assert found == "dp0.rank0 issued 3 operations of tp, dp0.rank1 only 2"
    processes = [process("client"), process("dp0.rank0", 11), process("dp0.rank1", 10)]
    assert sentences("AGREE", events, processes=processes) == []


def test_other_operations_in_a_step_are_found() -> None:
    def run(in_first: int) -> list[Event]:
        """Two steps of four collectives together, of which rank 1 does so many in the first."""
        steps = [call(20 * n, "dp0.rank0", "relay.send", "before", "step", n, n) for n in (1, 2, 3)]
        steps += [call(20 * n + 1, "dp0.rank1", "relay.recv", "after", "step", n, n) for n in (1, 2, 3)]
        return [*STARTED, *steps, *_ops("dp0.rank0", 2), *_ops("dp0.rank1", in_first)]

    assert sentences("AGREE", run(2)) == []
    (found,) = sentences("AGREE", run(3))
    assert found.startswith("dp0.rank1 issued tp.all_reduce, tp.all_reduce, tp.all_reduce in step 1, dp0.rank0")


def _ops(role: str, in_first: int) -> list[Event]:
    first = issued(role, *["all_reduce"] * in_first, t=25)
    return [*first, *issued(role, *["all_reduce"] * (4 - in_first), first=in_first + 1, t=45)]


def test_what_a_fault_changed_is_not_held_against_anybody() -> None:
    events = [*STARTED, *issued("dp0.rank0", *SAME), *issued("dp0.rank1", "all_gather")]
    skip = Skip(Instant.parse("dp0.rank1:tp.all_reduce#1:before"))
    assert sentences("AGREE", events, faults=[skip], fired=[0])
    assert sentences("AGREE", events, faults=[skip], fired=[1]) == []
