"""How each kind of fault is drawn: one function for each, from what a run passes for certain.

Every fault drawn is optional, since a kill may come before the instant of the next fault. Those that merely take time
take so little together that a sound engine has to serve; after all others it may refuse, with the right error.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from harness.faults import (
    AbortRace,
    Block,
    BlockLoop,
    Cancel,
    Close,
    Corrupt,
    Delay,
    Drop,
    DropClient,
    Duplicate,
    Exit,
    Extra,
    Fault,
    Flood,
    Foreign,
    Hold,
    Kill,
    Lag,
    Poison,
    Raise,
    Reorder,
    Reset,
    Restart,
    Skip,
    SlowReader,
    Stall,
    Stop,
    Swap,
    Terminate,
    Truncate,
    WrongShape,
)
from harness.faults.abort_race import When
from harness.faults.cancel import At
from harness.instant import Instant
from harness.plan import Request
from harness.search.passage import Passage

T = TypeVar("T")

FAR = 0x6E6F_7765_6467_6501
"""Where drawn integers begin.

Hypothesis mixes constants that it finds in the modules loaded so far into the integers that it draws, so that a seed
would draw other plans in a terminal than in a test. No program holds constants of this size.
"""

TICK = 0.01
"""Seconds: the times that are drawn are so many of these."""

_START_TICKS = 30
_PACE = 0.05
"""Seconds for which a slow reader keeps each token, and a loop is blocked: several steps of the engine."""

_PLACES = 1 << 30
_ABORTS: tuple[When, ...] = ("stranger", "before_add", "after_add", "first_token", "last_token", "finish")
_CANCELS: tuple[At, ...] = ("read", "add", "start", "tick")
_CLOSES: tuple[Literal["aclose", "break"], ...] = ("aclose", "break")
_SIGNALS: tuple[Literal["TERM", "INT", "HUP", "ABRT"], ...] = ("TERM", "INT", "HUP", "ABRT")


@lru_cache(maxsize=256)
def _index(size: int) -> SearchStrategy[int]:
    return st.integers(FAR, FAR + size - 1)


class Chooser:
    """Choices that are the same for the same seed, whatever has been imported; all but `place` shrink to the first.

    Each is one draw from a strategy that is made once: strategies built anew for each plan cost more than its run.
    """

    def __init__(self, draw: DrawFn) -> None:
        self._draw = draw

    def of(self, items: Sequence[T]) -> T:
        return items[self._draw(_index(len(items))) - FAR]

    def number(self, least: int, most: int) -> int:
        return self.of(range(least, most + 1))

    def whether(self) -> bool:
        return self.number(0, 1) == 1

    def place(self, items: Sequence[T]) -> T:
        """One of some places that were learnt: the same one although another run knows a place more or less."""
        drawn = self._draw(_index(_PLACES))
        return min(items, key=lambda item: zlib.crc32(f"{drawn}{item}".encode()))


class Situation:
    """What a fault is drawn from: a passage, the requests, and how many ticks a fault may take in steady state."""

    def __init__(self, choose: Chooser, passage: Passage, requests: Sequence[Request], ticks: int) -> None:
        self.choose = choose
        self.passage = passage
        self.ticks = ticks
        self._requests = requests

    def has(self, kind: str) -> bool:
        """Whether there is a place for a fault of that kind."""
        if kind in ON_FRAMES:
            return bool(self.passage.frames)
        if kind in ON_COLLECTIVES:
            return any(_is_collective(at) for at in self.passage.ranks)
        return kind not in ON_STREAMS or any(request.max_tokens > 1 for request in self._requests)

    def seconds(self, ticks: int | None = None) -> float:
        return round(self.choose.number(1, self.ticks if ticks is None else ticks) * TICK, 2)

    def instant(self, further: Sequence[Instant] = ()) -> Instant:
        """An instant of the ranks' work or of the ``further`` ones; one in five is of the demand at the end."""
        late = self.choose.number(1, 5) == 5
        return self._one(self.passage.late if late else (*self.passage.ranks, *further))

    def during_work(self, but: Instant | None = None) -> Instant:
        return self._one([at for at in self.passage.ranks if at != but])

    def collective(self) -> Instant:
        return self._one([at for at in self.passage.ranks if _is_collective(at)])

    def role(self) -> str:
        return self.choose.of(list(dict.fromkeys(at.role for at in self.passage.ranks)))

    def frame(self, messages: bool = False) -> dict[str, Any]:
        """The settings that name a frame; with ``messages`` none that is a command of ZMTP."""
        frames = [place for place in self.passage.frames if not messages or not _is_command(place.frame)]
        place = self._one(frames)
        return {name: getattr(place, name) for name in place.__struct_fields__}

    def request(self, least: int = 1) -> int:
        """A request of at least so many tokens."""
        return self.choose.of([n for n, request in enumerate(self._requests) if request.max_tokens >= least])

    def before_last(self, request: int) -> int:
        """A number of tokens with which a request is still under way, at least one."""
        return self.choose.number(1, self._requests[request].max_tokens - 1)

    def any_before_last(self, request: int) -> int:
        return self.choose.number(0, self._requests[request].max_tokens - 1)

    def _one(self, items: Sequence[T]) -> T:
        return self.choose.place(items) if self.passage.learnt else self.choose.of(items)


def _is_collective(at: Instant) -> bool:
    return at.side == "before" and at.site.startswith("tp.")


def _is_command(frame: str) -> bool:
    return frame.isupper() or frame == "join"


def _pause(kind: type[Delay] | type[Stop]) -> Callable[[Situation], Fault]:
    def draw(s: Situation) -> Fault:
        if s.choose.whether():
            return kind(at=s.instant(), seconds=s.seconds(), optional=True)
        return kind(at=Instant(s.role(), "start"), seconds=s.seconds(_START_TICKS), optional=True)

    return draw


def _block(s: Situation) -> Fault:
    at = s.during_work()
    until = s.during_work(but=at) if s.choose.whether() else None
    return Block(at=at, until=until, or_after=s.seconds(), optional=True)


def _hold(s: Situation) -> Fault:
    until = s.during_work() if s.choose.whether() else None
    return Hold(**s.frame(), until=until, or_after=s.seconds(), optional=True)


def _cancel(s: Situation) -> Fault:
    request, during = s.request(), s.choose.of(_CANCELS)
    tokens = 0 if during in ("start", "add") else s.any_before_last(request)
    return Cancel(request=request, after_tokens=tokens, during=during, optional=True)


def _streams(make: Callable[[Situation, int, int], Fault]) -> Callable[[Situation], Fault]:
    """A fault between two tokens of a request that has two."""

    def draw(s: Situation) -> Fault:
        request = s.request(least=2)
        return make(s, request, s.before_last(request))

    return draw


DRAWERS: dict[str, Callable[[Situation], Fault]] = {
    "delay": _pause(Delay),
    "kill": lambda s: Kill(at=s.instant(s.passage.client), optional=True),
    "drop": lambda s: Drop(**s.frame(), optional=True),
    "hold": _hold,
    "stop": _pause(Stop),
    "cancel": _cancel,
    "close": _streams(lambda s, r, n: Close(request=r, after_tokens=n, how=s.choose.of(_CLOSES), optional=True)),
    "abort_race": lambda s: AbortRace(request=s.request(), when=s.choose.of(_ABORTS), optional=True),
    "slow_reader": _streams(lambda s, r, n: SlowReader(request=r, after_tokens=n, seconds=_PACE, optional=True)),
    "drop_client": _streams(lambda s, r, n: DropClient(request=r, after_tokens=n, optional=True)),
    "raise": lambda s: Raise(at=s.instant(), optional=True),
    "exit": lambda s: Exit(at=s.instant(), code=s.choose.number(0, 2), optional=True),
    "terminate": lambda s: Terminate(at=s.instant(), signal=s.choose.of(_SIGNALS), optional=True),
    "restart": lambda s: Restart(at=s.during_work(), optional=True),
    "block": _block,
    "skip": lambda s: Skip(at=s.collective(), optional=True),
    "extra": lambda s: Extra(at=s.collective(), optional=True),
    "swap": lambda s: Swap(at=s.collective(), optional=True),
    "wrong_shape": lambda s: WrongShape(at=s.collective(), optional=True),
    "lag": lambda s: Lag(**s.frame(), seconds=s.seconds(), optional=True),
    "reorder": lambda s: Reorder(**s.frame(), optional=True),
    "reset": lambda s: Reset(**s.frame(), optional=True),
    "stall": lambda s: Stall(**s.frame(), or_after=s.seconds(), optional=True),
    "duplicate": lambda s: Duplicate(**s.frame(messages=True), optional=True),
    "corrupt": lambda s: Corrupt(**s.frame(messages=True), optional=True),
    "truncate": lambda s: Truncate(**s.frame(messages=True), optional=True),
    "foreign": lambda s: Foreign(**s.frame(messages=True), optional=True),
    "flood": _streams(lambda s, r, n: Flood(request=r, after_tokens=n, count=s.choose.number(1, 8), optional=True)),
    "poison": _streams(lambda s, r, n: Poison(request=r, after_tokens=n, optional=True)),
    "block_loop": _streams(lambda s, r, n: BlockLoop(request=r, after_tokens=n, seconds=_PACE, optional=True)),
}
"""Every kind that can be drawn."""

ON_FRAMES = ("drop", "hold", "lag", "reorder", "reset", "stall", "duplicate", "corrupt", "truncate", "foreign")
ON_COLLECTIVES = ("skip", "extra", "swap", "wrong_shape")
ON_STREAMS = ("close", "slow_reader", "drop_client", "flood", "poison", "block_loop")
"""What is done to a stream between two of its tokens, and needs a request with two."""
