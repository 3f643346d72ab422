"""Utility calls, and what the model says that each must answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.codec import Array
from engine.errors import UtilityError

if TYPE_CHECKING:
    from tests.engine.lives import Life

Check = Callable[[Any], None]


@dataclass(frozen=True, eq=False)
class Question:
    """A call. `answers` checks its result; it must fail instead, with one of the texts of `fails`, if it has none.

    With both it may do either. `local` says that it fails before it is sent. `then` is what it does to the engine.
    """

    method: str
    args: tuple[Any, ...] = ()
    answers: Check | None = None
    fails: tuple[str, ...] = ()
    local: bool = False
    then: Callable[[], None] = lambda: None

    def check(self, result: Any, error: BaseException | None) -> None:
        """Whether the answer is right."""
        if error is None:
            assert self.answers is not None, f"{self.method}{self.args} returned {result}, expected a failure"
            self.answers(result)
            return
        if not isinstance(error, UtilityError) or not any(text in error.text for text in self.fails):
            raise error
        assert error.method == self.method


def _equals(expected: Any) -> Check:
    def check(result: Any) -> None:
        assert result == expected

    return check


def _same_for_all(count: int) -> Check:
    def check(result: Any) -> None:
        assert len(result) == count
        assert len(set(result)) == 1

    return check


def step_counters(life: Life) -> Question:
    added = life.promises.added

    def check(result: dict[str, int]) -> None:
        assert result["accepted"] + result["refused"] == added
        assert result["finished"] + result["aborted"] <= result["accepted"]

    return Question("step_counters", (), check)


def live_requests(life: Life) -> Question:
    open_then = life.promises.open
    names = [promise.request.request_id for promise in open_then]

    def check(result: list[list[Any]]) -> None:
        live = [name for _, name in result]
        assert {client for client, _ in result} <= {0}
        assert len(live) == len(set(live))
        assert set(live) <= set(names)
        # Whose end the engine had told before it answered, of that the end has come in before the answer.
        again = [promise.request.request_id for promise in life.promises.all if promise not in open_then]
        for name in set(names) - set(live) - set(again):
            assert name not in life.owed

    return Question("live_requests", (), check)


def echo(life: Life) -> Question:
    return Question("collective_rpc", ("echo", [["a", 1, None, 2.5]]), _equals([["a", 1, None, 2.5]] * life.size))


def echo_array(life: Life) -> Question:
    values = np.arange(300.0)
    return Question("collective_rpc", ("echo", [values]), _equals([Array.of(values)] * life.size))


def rank_info(life: Life) -> Question:
    ranks = enumerate(life.factory.processes.items())
    infos = [{"role": role, "rank": rank, "pid": process.pid} for rank, (role, process) in ranks]
    return Question("collective_rpc", ("rank_info",), _equals(infos))


def digest(life: Life) -> Question:
    return Question("collective_rpc", ("digest",), _same_for_all(life.size))


def is_scheduler_paused(life: Life) -> Question:
    return Question("is_scheduler_paused", (), _equals(life.promises.holding))


def is_sleeping(life: Life) -> Question:
    return Question("is_sleeping", (), _equals(bool(life.promises.missing)))


def reset_prefix_cache(life: Life) -> Question:
    def check(result: Any) -> None:
        assert isinstance(result, bool)

    return Question("reset_prefix_cache", (), check)


def unknown(life: Life) -> Question:
    return Question("does_not_exist", (), fails=("no utility method does_not_exist",))


def wrong_arguments(life: Life) -> Question:
    return Question("step_counters", (1, 2), fails=("Call to step_counters method failed: too many",))


def failing_on_every_rank(life: Life) -> Question:
    return Question("collective_rpc", ("echo", []), fails=("Call to collective_rpc method failed: dp0.rank0: missing",))


def unsendable(life: Life) -> Question:
    return Question("collective_rpc", ("echo", [object()]), fails=("cannot be sent",), local=True)


QUESTIONS = {
    function.__name__: function
    for function in (
        step_counters,
        live_requests,
        echo,
        echo_array,
        rank_info,
        digest,
        is_scheduler_paused,
        is_sleeping,
        reset_prefix_cache,
        unknown,
        wrong_arguments,
        failing_on_every_rank,
        unsendable,
    )
}
"""By name. Each makes the question that is asked now."""


def _nothing(result: Any) -> None:
    assert result is None


def pause(life: Life, mode: str) -> Question:
    given_up = ("has been frozen before", "was resumed before") if mode == "wait" else ()
    return Question("pause_scheduler", (mode,), _nothing, given_up, then=lambda: life.promises.pause(mode))


def resume(life: Life) -> Question:
    if life.promises.missing:
        return Question("resume_scheduler", (), fails=("must be woken up first",))
    return Question("resume_scheduler", (), _nothing, then=life.promises.resume)


def sleep(life: Life, level: int) -> Question:
    return Question("sleep", (level,), _nothing, then=lambda: life.promises.sleep(level))


def wake_up(life: Life, tags: list[str] | None) -> Question:
    return Question("wake_up", (tags,), _nothing, then=lambda: life.promises.wake_up(tags))


ORDERS: dict[str, Callable[[Life], Question]] = {
    "pause: abort": lambda life: pause(life, "abort"),
    "pause: wait": lambda life: pause(life, "wait"),
    "pause: keep": lambda life: pause(life, "keep"),
    "resume": resume,
    "sleep 1": lambda life: sleep(life, 1),
    "sleep 2": lambda life: sleep(life, 2),
    "wake up": lambda life: wake_up(life, None),
    "wake up the weights": lambda life: wake_up(life, ["weights"]),
}
"""Calls that change what runs, by name."""
