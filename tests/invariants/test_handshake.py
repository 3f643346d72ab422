"""I36: whoever breaks the rules of the start's handshake is refused with what it said, and nothing of it is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from engine import rank
from engine.clock import Deadline
from engine.codec import packed
from engine.config import Timeouts
from engine.endpoints import Endpoints
from engine.messages import EngineReady, Hello, Welcome, engine_identity
from engine.ports import Port
from engine.rank import RankProcess
from engine.startup import StartupLink
from tests.engine.forks import config_for, replace
from tests.engine.wires import Before, instead
from tests.invariants import Change, invariant
from tests.invariants.callers import PATIENT, both_kinds
from tests.invariants.leavings import nothing_left
from tests.invariants.starts import LEAD, SECOND, Factories, fails
from tests.invariants.starts import factories as factories
from tests.invariants.starts import place as place

STARTING = "engine/client/starting.py"
OURS = (
    "return welcome if frames[0] == identity and (welcome.epoch, welcome.client_index) == (epoch, client_index) "
    "else None"
)

HASTY = Timeouts(startup=1.0, handshake=1.0, step=1.0, stall=0.5, shutdown=1.0)

KIN = ("I34", "I35")

Say = Callable[[StartupLink, Any, Callable[[Any], None]], None]
"""What rank 0 says on `startup` where it should say that record; the last argument says something."""


def saying(say: Say) -> Before:
    """Rank 0 says that, and then waits for being told to leave."""

    def before(role: str) -> None:
        whole = StartupLink._send

        def send(self: StartupLink, record: Any) -> None:
            say(self, record, lambda said: whole(self, said))

        if role == LEAD:
            replace(StartupLink, "_send", send)

    return before


def twice(kind: type) -> Say:
    def say(link: StartupLink, record: Any, then: Callable[[Any], None]) -> None:
        then(record)
        if isinstance(record, kind):
            then(record)
            link._lifeline.wait((), Deadline.never())

    return say


def changed(kind: type, **fields: Any) -> Say:
    def say(link: StartupLink, record: Any, then: Callable[[Any], None]) -> None:
        then(type(record)(**{**msgspec.structs.asdict(record), **(fields if isinstance(record, kind) else {})}))

    return say


def ready_first(link: StartupLink, record: Any, then: Callable[[Any], None]) -> None:
    then(EngineReady(record.epoch, record.engine_index))


def noise(link: StartupLink, record: Any, then: Callable[[Any], None]) -> None:
    link._socket.send(b"\xc1")


def two_frames(link: StartupLink, record: Any, then: Callable[[Any], None]) -> None:
    link._socket.send_multipart([packed(record), b"more"])


def identified(identity: bytes) -> Before:
    """Rank 0 has another identity on `startup`."""

    def before(role: str) -> None:
        whole = StartupLink.__init__

        def make(self: StartupLink, *args: Any) -> None:
            whole(self, *args)
            self._socket.identity = identity

        if role == LEAD:
            replace(StartupLink, "__init__", make)

    return before


def greeting(times: int = 1, **fields: Any) -> Before:
    """Rank 0 greets so often, with a welcome that has these fields."""

    def connect(self: Port, input_address: str, output_address: str, right: Welcome) -> None:
        self.input.connect(input_address)
        self.output.connect(output_address)
        for _ in range(times):
            self.input.send(packed(msgspec.structs.replace(right, **fields)))

    return instead(LEAD, Port, "connect", connect)


def stranger(role: str) -> None:
    """Rank 1, which has nothing to say there, says HELLO as well, before rank 0 can be ready."""
    whole = RankProcess._start

    def start(self: RankProcess) -> Any:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        socket = context.socket(zmq.DEALER)
        socket.identity = engine_identity(7)
        socket.connect(Endpoints(self._launch.directory, False).address("startup"))
        socket.send(packed(Hello(self._launch.epoch, 7, 0, "", "")))
        return whole(self)

    if role == SECOND:
        replace(RankProcess, "_start", start)


@dataclass(frozen=True)
class Breach:
    """What is done, and what is said of it."""

    name: str
    before: Before
    text: str
    phase: str
    role: str = LEAD

    def __str__(self) -> str:
        return self.name


BREACHES = (
    Breach("HELLO twice", saying(twice(Hello)), "Hello came on startup in state connected", "connect"),
    Breach("READY first", saying(ready_first), "EngineReady came on startup in state new", "hello"),
    Breach("READY twice", saying(twice(EngineReady)), "EngineReady came on startup in state ready", "connect"),
    Breach("noise", saying(noise), "a frame on startup cannot be read", "hello"),
    Breach("two frames", saying(two_frames), "a frame on startup cannot be read", "hello"),
    Breach("HELLO of another run", saying(changed(Hello, epoch=1)), "Hello on startup is of another run", "hello"),
    Breach("READY of another run", saying(changed(EngineReady, epoch=1)), "EngineReady on startup is of", "connect"),
    Breach("another engine", saying(changed(Hello, engine_index=1)), "said hello as (engine, version", "hello"),
    Breach("another version", saying(changed(Hello, version="0")), "said hello as (engine, version", "hello"),
    Breach("another configuration", saying(changed(Hello, digest="0")), "said hello as (engine, version", "hello"),
    Breach("unknown identity", identified(engine_identity(7)), "an engine of unknown identity 0700", "hello"),
    Breach("stranger", stranger, "an engine of unknown identity 0700", ""),
    Breach("welcome twice", greeting(2), "a second welcome, expected its one welcome of this run", "connect"),
    Breach("welcome of another run", greeting(epoch=1), "expected its one welcome of this run", "connect"),
    Breach("welcome of another client", greeting(client_index=1), "expected its one welcome of this run", "connect"),
)
CASES = [
    pytest.param(k, breach, id=breach.name) for k, breach in zip(cycle(("asyncio", "plain")), BREACHES, strict=False)
]


def only(line: str, condition: str = "False") -> Change:
    """What is asked by that line is not asked any more, or less."""
    return Change(STARTING, line, f"{line.partition(' ')[0]} {condition}:")


@invariant(
    "I36",
    breaks=(
        only('if isinstance(record, Hello) and self._state == "new":', "isinstance(record, Hello)"),
        only('elif isinstance(record, EngineReady) and self._state == "connected":', "isinstance(record, EngineReady)"),
        only("if identity != self._identity:"),
        only("if record.epoch != self._launch.epoch:"),
        only("if theirs != ours:"),
        only("if welcome is None or self._welcomed:", "welcome is None"),
        Change(STARTING, OURS, "return welcome"),
    ),
    kin=KIN,
)
@pytest.mark.parametrize(("kind", "breach"), CASES)
def test_who_breaks_the_rules_of_the_handshake_is_refused(
    kind: str, breach: Breach, place: Path, factories: Factories
) -> None:
    with nothing_left(place):
        error = fails(kind, config_for(2, timeouts=PATIENT), factories(breach.before))
    assert error.role == breach.role
    assert breach.text in error.cause
    assert breach.phase in ("", error.phase)


@invariant(
    "I36", breaks=Change(STARTING, 'return self._state == "ready" and self._welcomed', "return self._welcomed"), kin=KIN
)
@invariant(
    "I36",
    breaks=Change(STARTING, 'return self._state == "ready" and self._welcomed', 'return self._state == "ready"'),
    kin=KIN,
)
@pytest.mark.parametrize(("kind", "left_out"), [("asyncio", "the welcome"), ("plain", "READY")])
def test_a_start_in_which_something_is_left_out_is_no_start(
    kind: str, left_out: str, place: Path, factories: Factories
) -> None:
    before = greeting(0) if left_out == "the welcome" else instead(LEAD, StartupLink, "ready", lambda self: None)
    with nothing_left(place):
        error = fails(kind, config_for(1, timeouts=HASTY), factories(before))
    assert (error.role, error.cause) == (LEAD, f"not ready within {HASTY.startup:g} s")


@invariant(
    "I36",
    breaks=Change(
        "engine/control.py", "if (join.version, join.digest) != (engine_version(), self._digest):", "if False:"
    ),
    kin=KIN,
)
@both_kinds
def test_a_rank_of_another_configuration_is_refused_by_the_first(kind: str, place: Path, factories: Factories) -> None:
    before = instead(SECOND, rank, "config_digest", lambda launch: "0")
    with nothing_left(place):
        error = fails(kind, config_for(2, timeouts=PATIENT), factories(before))
    assert error.role == SECOND
    assert "dp0.rank1 joined with configuration digest 0" in error.cause
