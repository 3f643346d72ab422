"""I17: whatever thread or link carries messages, in a rank or in the client, its end is not survived."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest
import zmq

from engine.client.receiving import Reception
from engine.client.seats import NewsReader
from engine.client.sync import SyncMPClient
from engine.errors import EngineDeadError, ExitCode
from engine.lifeline import Lifeline
from engine.messages import Request
from engine.monitor import Monitor
from tests.engine import wires
from tests.engine.forks import replace
from tests.invariants import Change, invariant
from tests.invariants.callers import BOUND, PROMPT, LoopCaller, both_kinds, dies, serving, until
from tests.invariants.gates import Gate


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.close()


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
    kin=("I12",),
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
            'self._resources.die(EngineDeadError(CLIENT_ROLE, f"the receiver task {how}"))',
            "del how",
        ),
    ),
    kin=("I6", "I10", "I11", "I13"),
)
@both_kinds
def test_a_receiver_that_fails_ends_the_engine(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(kind, 2) as caller:
        caller.serve()
        waiting = [caller.begin_read(), caller.begin_read()]

        tried: list[object] = []

        def fail(self: Reception, frames: object) -> NoReturn:
            tried.append(frames)
            if len(tried) == 1:  # so that more is there when the failure is dealt with
                assert self._resources.plain_output.poll(int(BOUND * 1000))
            raise OSError("the link broke")

        monkeypatch.setattr(Reception, "take", fail)
        waiting += [caller.begin_call("step_counters") for _ in range(2)]
        (error,) = {dies(call) for call in waiting}
        assert error.culprit == "client"
        assert "the link broke" in error.cause
        until(lambda: not caller.factory.living(), "all ranks have left")


@invariant(
    "I17",
    breaks=Change(
        "engine/client/aio.py",
        """
        except Exception as failure:
            cause = f"what had arrived cannot be taken in: {type(failure).__name__}: {failure}"
        """,
        """
        except EngineDeadError as failure:
            cause = f"what had arrived cannot be taken in: {type(failure).__name__}: {failure}"
        """,
    ),
)
def test_a_search_for_a_late_output_that_fails_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("asyncio", 2) as caller:
        assert isinstance(caller, LoopCaller)
        caller.serve()
        client, resources = caller.client, caller.client._resources
        reading = caller.begin_read()

        async def search() -> None:
            """The loop has been blocked, and the message is there by now."""
            call = asyncio.create_task(client.call_utility_async("step_counters"))
            await asyncio.sleep(0)  # it is sent
            assert resources.plain_output.poll(int(BOUND * 1000))
            with monkeypatch.context() as patch:
                patch.setattr(Reception, "take", _fail)
                client._attach()._search(resources.link().sent)
            await call

        error = dies(caller.begin(search()))
        assert dies(reading) is error
        assert error.cause == "what had arrived cannot be taken in: OSError: the link broke"


def _fail(self: Reception, frames: object) -> NoReturn:
    raise OSError("the link broke")


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
