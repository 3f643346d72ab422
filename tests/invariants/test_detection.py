"""I15, I16 and I18: how soon a death or a standstill is noticed, wherever it is."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest

from engine import health
from engine.config import Timeouts
from engine.core import EngineCore
from engine.errors import EngineDeadError, EngineStalledError
from engine.messages import FinishReason, Request
from engine.ports import Ports
from engine.workers import WORKER_METHODS
from tests.engine import wires
from tests.invariants import Change, invariant
from tests.invariants.callers import BOUND, PROMPT, Caller, both_kinds, dies, serving, until
from tests.invariants.gates import Gate


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.close()


def stop(caller: Caller, rank: int) -> None:
    """SIGSTOP, and wait until it is obeyed."""
    caller.signal(rank, signal.SIGSTOP)
    until(lambda: health.is_stopped(caller.pid(rank)), "the rank is stopped")


# ---- I15 ----


@invariant(
    "I15",
    breaks=Change(
        "engine/monitor.py",
        """
        if any(has_failed(rank) for rank in ranks.all):
            death = settle(ranks)
            latch.set(EngineDeadError(death.culprit, death.cause))
        """,
        """
        if any(has_failed(rank) for rank in ranks.all):
            death = settle(ranks)
            return EngineDeadError(death.culprit, death.cause)
        """,
    ),
    kin=("I5", "I18"),
)
@both_kinds
@pytest.mark.parametrize("victim", [0, 1])
def test_a_death_is_known_to_all_while_another_rank_has_yet_to_leave(victim: int, kind: str) -> None:
    other = 1 - victim
    with serving(kind, 2) as caller:
        stop(caller, other)  # it cannot leave, and has to be killed after a grace of seconds
        waiting = [caller.begin_read(), caller.begin_call("step_counters"), caller.begin_read()]
        caller.signal(victim, signal.SIGKILL)
        errors = {dies(call) for call in waiting}
        assert errors == {caller.client.dead}
        assert dies(caller.begin_add(Request("late", PROMPT))) is caller.client.dead
        assert caller.factory.living() == [f"dp0.rank{other}"]
        caller.signal(other, signal.SIGCONT)


# ---- I16 ----


def standstill(caller: Caller) -> str:
    """What is wrong by the health check, if anything is."""
    try:
        caller.client.check_health()
    except EngineStalledError as error:
        return error.cause
    return ""


def is_red(caller: Caller) -> bool:
    return bool(standstill(caller))


@invariant(
    "I16",
    breaks=Change("engine/health.py", "if idle_for >= limit or stopped(pids) is not None:", "if idle_for >= limit:"),
)
@both_kinds
@pytest.mark.parametrize("victim", [0, 1])
def test_health_is_red_while_a_rank_is_stopped_and_green_when_it_goes_on(victim: int, kind: str) -> None:
    with serving(kind, 2) as caller:
        assert not is_red(caller)
        stop(caller, victim)
        assert is_red(caller)
        caller.signal(victim, signal.SIGCONT)
        until(lambda: not is_red(caller), "health is green again")
        caller.serve()


@invariant(
    "I16",
    breaks=(
        Change(
            "engine/health.py",
            "if _in_step(readings) or readings[0].more or traffic.sent != link.taken:",
            "if readings[0].more or traffic.sent != link.taken:",
        ),
        Change(
            "engine/health.py",
            "if _in_step(readings) or readings[0].more or traffic.sent != link.taken:",
            "if _in_step(readings) or readings[0].more:",
        ),
    ),
    kin=("I18",),
)
@both_kinds
def test_health_is_red_while_a_step_or_the_input_stands_still(kind: str) -> None:
    gates = Gate(), Gate()

    def before(role: str) -> None:
        wires.ahead("dp0.rank0", Ports, "_receive", gates[0].wait)(role)
        wires.ahead("dp0.rank1", EngineCore, "step", gates[1].wait)(role)

    quick = Timeouts(startup=20.0, handshake=10.0, step=60.0, stall=0.1, shutdown=5.0)
    with serving(kind, 2, before, keep=[gate.fileno() for gate in gates], timeouts=quick) as caller:
        assert not is_red(caller)
        caller.add("a")
        until(lambda: "message 1 was sent on input" in standstill(caller), "the input stands still")
        gates[0].open()
        until(lambda: "step 1 makes no progress" in standstill(caller), "the step stands still")
        gates[1].open()
        until(lambda: not is_red(caller), "health is green again")
        assert caller.outputs_of("a")["a"][-1].finish_reason is FinishReason.LENGTH
    for gate in gates:
        gate.close()


@invariant(
    "I16",
    breaks=Change(
        "engine/health.py",
        "idle_for = 0.0 if since is None else now() - since",
        "idle_for = now() - max(reading.at for reading in readings)",
    ),
)
@both_kinds
def test_health_is_green_however_long_nothing_is_asked_or_all_is_paused(kind: str) -> None:
    stall = 0.1
    with serving(kind, timeouts=Timeouts(startup=20.0, handshake=10.0, stall=stall, shutdown=5.0)) as caller:
        resources = caller.client._resources

        def owes_nothing() -> bool:
            return health.stalled_since(resources.pulses.read(), resources.link(), resources.traffic) is None

        def stays_green() -> None:
            until(owes_nothing, "the engine has done all that was asked")
            last = resources.pulses.read()[0].at
            while time.monotonic() < last + 3 * stall:
                assert not is_red(caller)
                time.sleep(stall / 10)

        caller.serve()
        stays_green()
        caller.add("frozen", 400)
        caller.call("pause_scheduler", "keep")
        caller.add("held")
        stays_green()
        caller.call("pause_scheduler", "abort")
        caller.call("resume_scheduler")
        caller.outputs_of("frozen", "held")


@invariant(
    "I16",
    breaks=Change(
        "engine/client/base.py",
        """
        self.check_dead()
        resources = self._resources
        """,
        "resources = self._resources",
    ),
    kin=("I10", "I12", "I14", "I21"),
)
@both_kinds
def test_health_is_red_for_ever_once_the_engine_is_dead(kind: str) -> None:
    with serving(kind) as caller:
        reading = caller.begin_read()
        caller.signal(0, signal.SIGKILL)
        error = dies(reading)
        for _ in range(2):
            with pytest.raises(EngineDeadError) as caught:
                caller.client.check_health()
            assert caught.value is error


# ---- I18 ----


@invariant(
    "I18",
    breaks=Change(
        "engine/monitor.py",
        "if any(has_failed(rank) for rank in ranks.all):\n    death = settle(ranks)",
        "if all(has_failed(rank) for rank in ranks.all):\n    death = settle(ranks)",
    ),
    kin=("I5", "I15", "I17", "I30", "I32"),
)
@both_kinds
@pytest.mark.parametrize("moment", ["idle", "step", "collective"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_is_noticed_at_once_whatever_goes_on(victim: int, moment: str, kind: str, gate: Gate) -> None:
    """Every deadline is a minute away."""

    def before(role: str) -> None:
        stuck = gate.wait if role == f"dp0.rank{victim}" else lambda: None
        if moment == "step":
            wires.ahead(role, EngineCore, "step", stuck)(role)
        WORKER_METHODS.register(_named("stuck", stuck))

    with serving(kind, 2, before, keep=[gate.fileno()]) as caller:
        waiting = [caller.begin_read()]
        if moment == "step":
            caller.add("a")
        elif moment == "collective":
            waiting.append(caller.begin_call("collective_rpc", "stuck"))
        if moment != "idle":
            until(lambda: caller.client._resources.pulses.read()[victim].busy, "the rank is in its step")
        caller.signal(victim, signal.SIGKILL)
        (error,) = {dies(call, within=2.0) for call in waiting}
        assert (error.culprit, error.cause) == (f"dp0.rank{victim}", "killed by SIGKILL")


@invariant(
    "I18",
    breaks=(
        Change("engine/rank.py", "core.step(raws)", "with contextlib.suppress(ValueError):\n    core.step(raws)"),
        Change(
            "engine/rank.py",
            "result = core.step([incoming.message for incoming in taken], ports.late_aborts)",
            """
            with contextlib.suppress(ValueError):
                result = core.step([incoming.message for incoming in taken], ports.late_aborts)
            """,
        ),
    ),
    kin=("I5", "I21"),
)
@both_kinds
def test_a_rank_that_raises_ends_the_engine_as_the_cause_of_it(kind: str) -> None:
    for victim in ("dp0.rank0", "dp0.rank1"):

        def fail() -> NoReturn:
            raise ValueError("the step went wrong")

        with serving(kind, 2, wires.ahead(victim, EngineCore, "step", fail, nth=3)) as caller:
            caller.add("a", 100)
            while (reading := caller.begin_read()).exception(BOUND) is None:
                pass
            error = dies(reading)
            assert error.culprit == victim
            assert error.cause == "ValueError: the step went wrong"


@invariant(
    "I18",
    breaks=(
        Change("engine/config.py", "return None if self.unbounded else self.timeouts.step", "return None"),
        Change(
            "engine/client/resources.py",
            "return len(self._owed) + len(self._calls)",
            "return len(self._owed)",
        ),
    ),
    kin=("I32",),
)
@both_kinds
@pytest.mark.parametrize(
    ("victim", "what"), [(1, "request"), (1, "collective_rpc"), (0, "collective_rpc"), (0, "profile")]
)
def test_a_stopped_rank_is_death_at_the_step_deadline_whatever_is_asked(victim: int, what: str, kind: str) -> None:
    timeouts = Timeouts(startup=20.0, handshake=10.0, step=0.5, stall=0.2, shutdown=5.0)
    with serving(kind, 2, timeouts=timeouts) as caller:
        stop(caller, victim)
        began = time.monotonic()
        if what == "request":
            waiting = [caller.begin_read(), caller.begin_add(Request("a", PROMPT))]
            assert waiting.pop().exception(BOUND) is None
        else:
            waiting = [caller.begin_call(what, "digest" if what == "collective_rpc" else True)]
        (error,) = {dies(call) for call in waiting}
        assert 0.5 <= time.monotonic() - began < 3.0
        assert error.culprit == f"dp0.rank{victim}"
        assert caller.client.dead is error
        caller.signal(victim, signal.SIGKILL)  # in place of the launcher, after its grace


def _named(name: str, act: Callable[[], None]) -> Callable[[EngineCore], None]:
    """A worker method of that name."""

    def method(core: Any) -> None:
        act()

    method.__name__ = name
    return method
