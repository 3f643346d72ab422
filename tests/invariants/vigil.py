"""An engine whose rank 0 stands still, and everybody who can wait for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import zmq

from engine.client.base import MPClient
from engine.errors import EngineDeadError
from engine.messages import Request, SamplingParams
from engine.ports import Port, Ports
from tests.engine.forks import replace
from tests.engine.wires import Before, all_of
from tests.invariants.callers import BOUND, PROMPT, Call, Caller, dies, serving, until
from tests.invariants.gates import Bell, Gate

LEAD = "dp0.rank0"

LARGE = 8 << 20
"""Bytes that no buffer between two processes takes in."""

FOREVER = 400
"""Tokens of a request that does not end by itself while a test looks at it."""

Act = Callable[[Ports], None]


def nothing(ports: Ports) -> None:
    """Go on as if nothing had been."""


def alone(role: str) -> None:
    """Leave that rank as it is."""


class Vigil:
    """One client, and rank 0 that holds before it sends the first outputs; :meth:`go_on` has it act then."""

    def __init__(self, caller: Caller, gate: Gate) -> None:
        self.caller = caller
        self.go_on = gate.open
        self.waiters: dict[str, Call] = {}

    def assemble(self) -> None:
        """Two readers, a utility call, a request whose large array cannot leave, and one that is behind it."""
        caller, traffic = self.caller, self.caller.client._resources.traffic
        self.waiters["reader"] = caller.begin_read()
        self.waiters["second reader"] = caller.begin_read()
        self.waiters["utility"] = caller.begin_call("step_counters")
        until(lambda: traffic.sent == 2, "the call is sent")
        self.waiters["send"] = caller.begin_add(large("large"))
        self.waiters["second send"] = caller.begin_add(large("second large"))
        until(lambda: traffic.sent == 4, "the requests are on their way")
        assert not any(call.done() for call in self.waiters.values())

    def ends(self) -> EngineDeadError:
        """The one error with which all of them end, and every later call."""
        errors = {name: dies(call) for name, call in self.waiters.items()}
        error = errors["reader"]
        assert {name for name, other in errors.items() if other is not error} == set()
        dead_for_all(self.caller, error)
        return error


@contextlib.contextmanager
def vigil(
    kind: str, act: Act = nothing, *, before: Before = alone, keep: Sequence[int] = (), **changes: Any
) -> Iterator[Vigil]:
    """Rank 0 holds in its first step, and takes in no more than one message meanwhile."""
    with contextlib.ExitStack() as stack:
        gate, bell = Gate(), Bell()
        stack.callback(gate.close)
        stack.callback(bell.close)

        hooks = all_of(lambda role: _holding(role, act, gate, bell), before)
        fds = [gate.fileno(), bell.fileno(), *keep]
        caller = stack.enter_context(serving(kind, before=hooks, keep=fds, **changes))
        stack.callback(gate.open)
        caller.add("held", FOREVER)
        bell.wait()
        yield Vigil(caller, gate)


def _holding(role: str, act: Act, gate: Gate, bell: Bell) -> None:
    if role != LEAD:
        return
    make, send, acts = Port.__init__, Ports.send, iter([act])

    def narrow(self: Port, *args: object) -> None:
        make(self, *args)  # type: ignore[arg-type]
        self.input.set(zmq.RCVHWM, 1)

    def hold(self: Ports, result: object) -> None:
        for acting in acts:
            bell.ring()
            gate.wait()
            acting(self)
        send(self, result)  # type: ignore[arg-type]

    replace(Port, "__init__", narrow)
    replace(Ports, "send", hold)


def large(name: str, size: int = LARGE) -> Request:
    """A request that travels without a copy. The engine refuses it, if it ever gets there."""
    return Request(name, [], SamplingParams(1), np.ones(size, np.uint8))  # type: ignore[arg-type]


def dead_for_all(caller: Caller, error: EngineDeadError) -> None:
    """The client's engine is dead of that error: every call says so, an abort says nothing, and no call is open."""
    client: MPClient = caller.client
    for _ in range(2):
        assert dies(caller.begin_read()) is error
        assert dies(caller.begin_add(Request("late", PROMPT, SamplingParams(1)))) is error
        assert dies(caller.begin_add(large("late"))) is error
        assert dies(caller.begin_call("step_counters")) is error
        assert caller.begin_abort(["held", "late"]).result(BOUND) is None
        with pytest.raises(EngineDeadError) as caught:
            client.check_health()
        assert caught.value is error
    assert client.dead is error
    assert len(client._resources.calls) == 0
