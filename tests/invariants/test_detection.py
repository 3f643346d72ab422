"""I15 to I18 and I22: how soon a death or a standstill is noticed, wherever it is, and what a program makes of it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import zmq

from engine import cli, health
from engine.client import base
from engine.client.receiving import Reception
from engine.client.seats import NewsReader
from engine.client.sync import SyncMPClient
from engine.config import Timeouts
from engine.core import EngineCore
from engine.errors import EngineDeadError, EngineStalledError, ExitCode
from engine.lifeline import Lifeline
from engine.llm import AsyncLLM
from engine.messages import FinishReason, Request, SamplingParams
from engine.monitor import Monitor
from engine.ports import Ports
from engine.workers import WORKER_METHODS
from tests.engine import wires
from tests.engine.forks import config_for, replace
from tests.engine.narration import Narrator, TellingFactory
from tests.invariants import Change, invariant
from tests.invariants.callers import BOUND, PATIENT, PROMPT, Caller, both_kinds, dies, serving, until
from tests.invariants.gates import Gate
from tests.invariants.programs import Program


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


def is_red(caller: Caller) -> bool:
    try:
        caller.client.check_health()
    except EngineStalledError:
        return True
    return False


@invariant(
    "I16",
    breaks=Change(
        "engine/health.py", "if idle_for >= limit or stopped(pids) is not None:", "if idle_for >= limit:"
    ),
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
            "if _in_step(readings) or traffic.sent != link.taken:",
            "if traffic.sent != link.taken:",
        ),
        Change(
            "engine/health.py",
            "if _in_step(readings) or traffic.sent != link.taken:",
            "if _in_step(readings):",
        ),
    ),
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
        for where, gate in zip(("message 1 was sent on input", "step 1 makes no progress"), gates, strict=True):
            until(lambda: is_red(caller), where)
            with pytest.raises(EngineStalledError, match=where):
                caller.client.check_health()
            gate.open()
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
    kin=("I14",),
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


# ---- I17 ----


@invariant(
    "I17",
    breaks=Change("engine/lifeline.py", "self._leave(ExitCode.OWN_FAILURE, self._role, cause)", "del cause"),
)
@both_kinds
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_whose_lifeline_thread_fails_ends_the_engine(victim: int, kind: str, gate: Gate) -> None:
    role = f"dp0.rank{victim}"

    def watch(self: Lifeline) -> NoReturn:
        gate.wait()
        raise OSError("the poll broke")

    with serving(kind, 2, wires.instead(role, Lifeline, "_watch", watch), keep=[gate.fileno()]) as caller:
        caller.serve()
        reading = caller.begin_read()
        gate.open()
        error = dies(reading)
        assert error.culprit == role
        assert error.cause == "its lifeline thread failed: OSError: the poll broke"
        until(lambda: not caller.factory.living(), "all ranks have left")


@invariant(
    "I17",
    breaks=(
        Change("engine/ports.py", "port.receive()", "with contextlib.suppress(zmq.ZMQError):\n    port.receive()"),
        Change(
            "engine/ports.py",
            "self.output.send_multipart(frames)",
            "with contextlib.suppress(zmq.ZMQError):\n    self.output.send_multipart(frames)",
        ),
    ),
)
@both_kinds
def test_an_error_in_rank_0_s_input_or_output_ends_the_engine(kind: str) -> None:
    for name, type_of_socket in (("recv_multipart", zmq.DEALER), ("send_multipart", zmq.PUSH)):
        gate = Gate()
        with serving(kind, 2, _breaking(name, type_of_socket, gate), keep=[gate.fileno()]) as caller:
            caller.serve()
            reading = caller.begin_read()
            gate.open()
            caller.begin_add(Request("lost", PROMPT)).exception(BOUND)
            error = dies(reading)
            assert error.culprit == "dp0.rank0"
            assert "the link broke" in error.cause
            until(lambda: not caller.factory.living(), "all ranks have left")
            assert caller.factory.exits()[0] == ExitCode.OWN_FAILURE
        gate.close()


def _breaking(name: str, type_of_socket: int, gate: Gate) -> Callable[[str], None]:
    """In rank 0, that method of sockets of that type fails once the gate is open."""

    def before(role: str) -> None:
        whole = getattr(zmq.Socket, name)

        def method(self: zmq.Socket[bytes], *args: Any, **options: Any) -> Any:
            if self.socket_type == type_of_socket and gate.is_open:
                raise zmq.ZMQError(zmq.ENOTSUP, "the link broke")
            return whole(self, *args, **options)

        if role == "dp0.rank0":
            replace(zmq.Socket, name, method)

    return before


@invariant(
    "I17",
    breaks=Change(
        "engine/monitor.py",
        """
        except Exception as failure:
            # An engine that nobody watches must not go on: its next death would reach nobody.
        """,
        "except EngineDeadError as failure:",
    ),
)
@both_kinds
def test_a_monitor_thread_that_fails_ends_the_engine(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(kind, 2) as caller:
        waiting = [caller.begin_read(), caller.begin_read()]
        watchdog, watch = caller.client._resources.watchdog, caller.client._resources.watch
        assert isinstance(watch, Monitor)

        def fail() -> NoReturn:
            raise OSError("the poll broke")

        monkeypatch.setattr(watchdog, "deadline", fail)
        watch.wake()
        (error,) = {dies(call) for call in waiting}
        assert error.cause == "its monitor thread failed: OSError: the poll broke"
        until(lambda: not caller.factory.living(), "all ranks have left")


@invariant(
    "I17",
    breaks=(
        Change("engine/client/sync.py", "except Exception as failure:", "except EngineDeadError as failure:"),
        Change(
            "engine/client/aio.py",
            "self._resources.die(EngineDeadError(CLIENT_ROLE, f\"the receiver task {how}\"))",
            "del how",
        ),
    ),
    kin=("I10", "I11", "I13"),
)
@both_kinds
def test_a_receiver_that_fails_ends_the_engine(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(kind, 2) as caller:
        caller.serve()
        waiting = [caller.begin_read(), caller.begin_read()]

        def fail(self: Reception, frames: object) -> NoReturn:
            raise OSError("the link broke")

        monkeypatch.setattr(Reception, "take", fail)
        waiting.append(caller.begin_call("step_counters"))
        (error,) = {dies(call) for call in waiting}
        assert error.culprit == "client"
        assert "the link broke" in error.cause
        until(lambda: not caller.factory.living(), "all ranks have left")


@invariant(
    "I17",
    breaks=Change(
        "engine/client/seats.py",
        """
        except Exception as failure:
            # A client that nobody tells anything must not go on: the engine's death would not reach it.
        """,
        "except EngineDeadError as failure:",
    ),
)
def test_a_further_client_s_watch_that_fails_is_the_end_of_that_client_and_of_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving("plain", client_count=2) as caller:
        guest = SyncMPClient.join(caller.client.seat(1))
        with monkeypatch.context() as patch:

            def fail(self: NewsReader) -> NoReturn:
                raise OSError("the poll broke")

            patch.setattr(NewsReader, "read", fail)
            assert guest._resources.watch is not None
            guest._resources.watch.wake()
            with pytest.raises(EngineDeadError, match="its seat thread failed: OSError: the poll broke"):
                guest.get_output(BOUND)
        guest.shutdown()
        caller.serve()


# ---- I18 ----


@invariant(
    "I18",
    breaks=Change(
        "engine/monitor.py",
        "if any(has_failed(rank) for rank in ranks.all):\n    death = settle(ranks)",
        "if all(has_failed(rank) for rank in ranks.all):\n    death = settle(ranks)",
    ),
    kin=("I15",),
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
            waiting = [caller.begin_call(what, *{"collective_rpc": ["digest"], "profile": [True]}[what])]
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


# ---- I22 ----


def serve_on_a_loop(narrator: Narrator) -> None:
    """A program that streams until it is told to end."""

    async def life() -> None:
        async with AsyncLLM(config_for(2, timeouts=PATIENT), TellingFactory(narrator, lambda role: None)) as llm:
            down: list[asyncio.Task[None]] = []
            end = lambda: down.append(asyncio.create_task(asyncio.to_thread(llm.shutdown)))  # noqa: E731
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
            async for output in llm.generate(PROMPT, SamplingParams(400)):
                narrator.say("output", output.finish_reason)

    asyncio.run(life())


def serve_by_plain_calls(narrator: Narrator) -> None:
    """The same with the other client."""
    client = SyncMPClient(config_for(2, timeouts=PATIENT), TellingFactory(narrator, lambda role: None))
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=client.shutdown).start())
    client.add_request(Request("a", PROMPT, SamplingParams(400)))
    reason = None
    while reason is None:
        for output in client.get_output().outputs:
            reason = output.finish_reason
            narrator.say("output", reason)
    client.shutdown()


def generate_text(narrator: Narrator) -> None:
    """The command line's program."""
    replace(base, "SpawnFactory", lambda: TellingFactory(narrator, lambda role: None))
    printing = cli.print_text

    def print_text(text: str) -> None:
        printing(text)
        narrator.say("output", text)

    replace(cli, "print_text", print_text)
    sys.argv = ["engine", "generate", "hello", "--tp", "2", "--max-tokens", os.environ.get("TOKENS", "400")]
    cli.run()


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Callable[[Callable[[Narrator], None]], Program]]:
    """Starts programs, and leaves none running."""
    made: list[Program] = []

    def start(main: Callable[[Narrator], None]) -> Program:
        made.append(Program(main, tmp_path))
        return made[-1]

    yield start
    for program in made:
        program.close()


@invariant(
    "I22",
    breaks=(
        Change("engine/cli.py", "_leave(str(error), 1)", "_leave(str(error), 0)"),
        Change("engine/llm.py", "raise output.with_traceback(None)", "return"),
    ),
)
@pytest.mark.parametrize("main", [serve_on_a_loop, serve_by_plain_calls, generate_text])
def test_a_program_whose_engine_dies_ends_with_an_error(
    main: Callable[[Narrator], None], programs: Callable[[Callable[[Narrator], None]], Program]
) -> None:
    program = programs(main)
    program.wait_for("output")
    program.signal("dp0.rank1", signal.SIGKILL)
    assert program.end() == 1
    assert "engine is dead: dp0.rank1: killed by SIGKILL" in program.said


@invariant(
    "I22",
    breaks=Change(
        "engine/rank.py",
        "except StopRequested:\n    code = ExitCode.STOPPED",
        'except StopRequested:\n    code = self._fail(ExitCode.STOPPED, self._role, "a stop was requested")',
    ),
)
@pytest.mark.parametrize("main", [serve_on_a_loop, serve_by_plain_calls])
def test_a_program_that_is_told_to_end_does_so_without_an_error(
    main: Callable[[Narrator], None], programs: Callable[[Callable[[Narrator], None]], Program]
) -> None:
    program = programs(main)
    program.wait_for("output")
    program.signal("program", signal.SIGTERM)
    assert program.end() == 0
    assert program.told[-1] == "output abort"
    assert program.said == ""


@invariant("I22")
def test_a_program_that_has_done_its_work_ends_without_an_error(
    monkeypatch: pytest.MonkeyPatch, programs: Callable[[Callable[[Narrator], None]], Program]
) -> None:
    monkeypatch.setenv("TOKENS", "8")
    program = programs(generate_text)
    assert program.end() == 0
    assert program.said.count("\n") == 1
    assert "engine" not in program.said
