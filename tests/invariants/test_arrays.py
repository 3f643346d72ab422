"""I7 to I9: large arrays arrive as they were, nobody touches their memory too early, and it is given back."""

from __future__ import annotations

import gc
import signal
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch

from engine.health import is_stopped
from engine.messages import Request, SamplingParams
from engine.model import reference
from engine.ports import TAKE_BYTES, Ports
from engine.utilities import UTILITIES
from tests.engine.forks import replace
from tests.invariants import Change, invariant
from tests.invariants.callers import BOUND, Caller, LoopCaller, both_kinds, serving, tokens_of, until
from tests.invariants.outputs import golden
from tests.invariants.vigil import FOREVER, LEAD

CODEC, SENDING, INBOX = "engine/codec.py", "engine/client/sending.py", "engine/client/inbox.py"

# ---- I7: bit for bit ----


def around(*sizes: int) -> list[int]:
    return [size + off for size in sizes for off in (-1, 0, 1)]


@invariant("I7", breaks=Change(CODEC, "buffer = self._aux[content]", "buffer = self._aux[-1]"), kin=("I8", "I9", "I29"))
@both_kinds
@pytest.mark.parametrize(
    ("size", "lengths"), [(1, around(256, 64 << 10, 1 << 20, TAKE_BYTES)), (2, around(256, 64 << 10, 1 << 20))]
)
def test_arrays_of_every_size_arrive_bit_for_bit_while_others_are_on_their_way(
    size: int, lengths: list[int], kind: str
) -> None:
    random = np.random.default_rng(0)
    with serving(kind, size) as caller:
        caller.add("beside", FOREVER)
        sent = [[random.integers(0, 256, length, np.uint8) for _ in range(2)] for length in lengths]
        calls = [caller.begin_call("collective_rpc", "echo", [{"two": arrays}]) for arrays in sent]
        for arrays, call in zip(sent, calls, strict=True):
            for got in call.result(BOUND):
                assert [bytes(array.data) for array in got["two"]] == [array.tobytes() for array in arrays]


def layouts() -> dict[str, Any]:
    grid = np.arange(3000.0).reshape(50, 60)
    return {
        "columns first": np.asfortranarray(grid),
        "every other": grid[::2, ::3],
        "backwards": grid[::-1],
        "big-endian": grid.astype(">f4"),
        "big-endian integers, every other": np.arange(1000, dtype=">i8")[::2],
        "one number": np.full((), 1.5, np.float16),
        "nothing": np.ones((4, 0)),
        "truth": grid > 100,
        "tensor": torch.arange(600).reshape(20, 30).t(),
    }


@invariant(
    "I7",
    breaks=Change(
        CODEC,
        'little = np.ascontiguousarray(value, value.dtype.newbyteorder("<")).reshape(value.shape)',
        "little = np.ascontiguousarray(value).reshape(value.shape)",
    ),
)
@both_kinds
def test_arrays_of_every_layout_arrive_as_what_they_show(kind: str) -> None:
    with serving(kind) as caller:
        for name, value in layouts().items():
            (got,) = caller.call("collective_rpc", "echo", [value])
            shown = np.asarray(value)
            assert (got.numpy().dtype.name, got.shape) == (shown.dtype.name, shown.shape), name
            assert np.array_equal(got.numpy(), shown), name


# ---- I8: not too early ----

PROMPT_ROWS = list(range(300)) + list(range(200))
"""A prompt whose embeddings are more than the buffers between two processes take in."""


def stopped(caller: Caller) -> None:
    caller.signal(0, signal.SIGSTOP)
    until(lambda: is_stopped(caller.pid(0)), "rank 0 is stopped")


def embedded() -> np.ndarray[Any, Any]:
    rows: np.ndarray[Any, Any] = reference.embedded("tiny", PROMPT_ROWS).double().numpy().copy()
    return rows


@invariant(
    "I8",
    breaks=(
        Change(SENDING, "return Parcel(*(frame.tracker for frame in aux)) if aux else None", "return None"),
        Change("engine/client/sync.py", "if not self._receiver.await_release(parcel, deadline):", "if False:"),
        Change("engine/client/aio.py", "await released", "await asyncio.sleep(0)"),
    ),
    kin=("I12", "I13", "I21", "I30", "I39"),
)
@both_kinds
def test_a_request_returns_when_its_array_has_left_and_not_before(kind: str) -> None:
    rows = embedded()
    with serving(kind) as caller:
        stopped(caller)
        call = caller.begin_add(Request("a", [], SamplingParams(2), rows))  # type: ignore[arg-type]
        with pytest.raises(TimeoutError):
            call.result(0.2)
        caller.signal(0, signal.SIGCONT)
        call.result(BOUND)
        rows[:] = 0.0
        assert tokens_of(caller.outputs_of("a")["a"]) == golden(2, PROMPT_ROWS)


@invariant("I8")
def test_an_array_that_everybody_has_forgotten_stays_as_it_was_until_it_has_left() -> None:
    with serving("asyncio") as caller:
        stopped(caller)
        call = caller.begin_add(Request("a", [], SamplingParams(2), embedded()))  # type: ignore[arg-type]
        until(lambda: caller.client._resources.traffic.sent == 1, "the request is on its way")
        call.cancel()
        assert isinstance(caller, LoopCaller)
        caller.begin(_nothing()).result(BOUND)
        gc.collect()
        litter = [np.zeros((len(PROMPT_ROWS), 96)) for _ in range(4)]
        caller.signal(0, signal.SIGCONT)
        assert tokens_of(caller.outputs_of("a")["a"]) == golden(2, PROMPT_ROWS)
        assert not any(array.any() for array in litter)


async def _nothing() -> None:
    """A turn of the loop."""


def with_a_blackboard(role: str) -> None:
    """Rank 0 shows the same memory in every answer, and wipes its end out as soon as a step's answers are sent."""
    board = np.ones(16 << 20, np.uint8)
    whole = Ports.send

    def board_shown(core: Any) -> Any:
        board[:] = 1
        return board

    def send(self: Ports, result: Any) -> None:
        whole(self, result)
        board[-4096:] = 0

    UTILITIES.register(board_shown)
    if role == LEAD:
        replace(Ports, "send", send)


@invariant(
    "I8",
    breaks=Change(
        "engine/ports.py", "self.output.send_multipart(frames)", "self.output.send_multipart(frames, copy=False)"
    ),
    kin=("I7",),
)
@both_kinds
def test_an_answer_is_what_the_engine_s_memory_held_when_it_was_given(kind: str) -> None:
    with serving(kind, before=with_a_blackboard) as caller:
        for call in [caller.begin_call("board_shown") for _ in range(3)]:
            assert call.result(BOUND).numpy().all()


# ---- I9: given back ----

MEGABYTE = 1 << 20

KEEPING = "self._outputs.append(outputs)\nself._read = [*getattr(self, '_read', ()), outputs]\n"


def traced() -> int:
    """Bytes that Python and numpy hold."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.fixture
def tracing() -> Any:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@invariant(
    "I9",
    breaks=(
        Change(
            INBOX,
            "self._outputs.append(outputs)\nself._wake_one()",
            KEEPING + "self._wake_one()",
        ),
        Change(
            INBOX,
            "self._outputs.append(outputs)\nself._changed.notify()",
            KEEPING + "self._changed.notify()",
        ),
    ),
)
@both_kinds
def test_unread_outputs_take_the_memory_of_what_they_hold_until_they_are_read(kind: str, tracing: None) -> None:
    count, likeliest = 80, 380
    held = count * likeliest * (8 + 8)  # a token's id and its log-probability

    def ask(name: str, tokens: int) -> None:
        params = SamplingParams(tokens, logprobs=likeliest)
        caller.begin_add(Request(name, [1, 2, 3], params)).result(BOUND)

    with serving(kind) as caller:
        ask("before", 3)
        caller.outputs_of("before")
        base = traced()
        ask("a", count)
        until(lambda: not caller.client._resources.owed, "all has come")
        grown = traced() - base
        assert held < grown < 3 * held
        for number in range(count):
            caller.read()
            if number == count // 2:
                assert traced() - base < grown * 2 / 3
        until(lambda: traced() - base < grown / 10, "it is given back")


@invariant(
    "I9",
    breaks=(
        Change(CODEC, "finally:\n    self._aux, self._used = (), 0", "finally:\n    pass"),
        Change(CODEC, "finally:\n    self._aux = []", "finally:\n    pass"),
    ),
    kin=("I5",),
)
@both_kinds
def test_what_was_sent_and_what_was_answered_take_no_memory_afterwards(kind: str, tracing: None) -> None:
    with serving(kind) as caller:
        caller.call("collective_rpc", "echo", [np.ones(1000)])
        base = traced()
        answer = caller.call("collective_rpc", "echo", [np.ones(MEGABYTE)])
        assert traced() - base > 7 * MEGABYTE  # eight, but for what else was let go meanwhile
        del answer
        until(lambda: traced() - base < MEGABYTE, "it is given back")
