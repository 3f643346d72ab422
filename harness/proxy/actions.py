"""What rules do to frames: one function for each action.

An action takes the flow, the unit and the rule's state, uses the flow's verbs, and says whether it took the unit. One
that ends does nothing once its release instant is behind. A further action is one more function, and a verb where one
is missing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Protocol

from harness.proxy.records import Fate
from harness.proxy.rules import RuleState, Unit
from harness.zmtp import Message, encode_message


class Flow(Protocol):
    """What an action may do with one direction of one connection."""

    def forward(self, unit: Unit, rule: int | None = None, fate: Fate = "passed") -> None:
        """Send the unit on, behind anything that is held."""

    def inject(self, parts: Sequence[bytes], rule: int) -> None:
        """Send a message that nobody has sent, behind anything that is held."""

    def moved(self, message: Message) -> Sequence[bytes] | None:
        """The parts of a message as a foreign run would have sent it; None if that cannot be said."""

    def drop(self, unit: Unit, rule: int) -> None:
        """Make an end of the unit."""

    def sever(self, unit: Unit, rule: int) -> None:
        """Make an end of the unit and of the whole connection."""

    def hold(self, unit: Unit, state: RuleState) -> None:
        """Keep the unit and all that comes behind it; a hold that ends by the clock outlasts the sender."""

    def stall(self, unit: Unit, state: RuleState) -> None:
        """Keep the unit, and read no further."""

    def set_aside(self, unit: Unit, state: RuleState) -> None:
        """Keep the unit until another one has gone."""

    def slow(self, state: RuleState, rate: int) -> None:
        """Carry at most so many bytes a second from now on."""

    def refuse(self, state: RuleState) -> None:
        """Let the leg take no new connection."""


def drop(flow: Flow, unit: Unit, state: RuleState) -> bool:
    """The frame is lost."""
    state.fired += 1
    flow.drop(unit, state.rule.index)
    return True


def _until_open(do: Callable[[Flow, Unit, RuleState], None]) -> Callable[[Flow, Unit, RuleState], bool]:
    """The action that does this, as long as its release instant is not behind."""

    @functools.wraps(do)
    def act(flow: Flow, unit: Unit, state: RuleState) -> bool:
        if state.open:
            return False
        state.fired += 1
        do(flow, unit, state)
        return True

    return act


@_until_open
def hold(flow: Flow, unit: Unit, state: RuleState) -> None:
    """The frame waits."""
    flow.hold(unit, state)


@_until_open
def lag(flow: Flow, unit: Unit, state: RuleState) -> None:
    """The frame takes longer, as do those behind it; it arrives even if the sender ends meanwhile."""
    flow.hold(unit, state)


@_until_open
def reorder(flow: Flow, unit: Unit, state: RuleState) -> None:
    """The next frame goes first."""
    flow.set_aside(unit, state)


@_until_open
def stall(flow: Flow, unit: Unit, state: RuleState) -> None:
    """Nothing moves any more, so that back pressure is felt."""
    flow.stall(unit, state)


def slow(flow: Flow, unit: Unit, state: RuleState) -> bool:
    """The frame and all behind it take their time."""
    if state.open or state.rule.rate is None:
        return False
    state.fired += 1
    flow.slow(state, state.rule.rate)
    flow.forward(unit, state.rule.index)
    return True


@_until_open
def refuse(flow: Flow, unit: Unit, state: RuleState) -> None:
    """The frame is lost, its connection with it, and nobody listens any more."""
    flow.refuse(state)
    flow.sever(unit, state.rule.index)


def reset(flow: Flow, unit: Unit, state: RuleState) -> bool:
    """The frame is lost, and its connection with it."""
    state.fired += 1
    flow.sever(unit, state.rule.index)
    return True


def corrupt(flow: Flow, unit: Unit, state: RuleState) -> bool:
    """One byte of the message's last part has every bit flipped."""
    if unit.message is None or not unit.message.bodies[-1]:
        return False
    *parts, last = unit.message.bodies
    offset = len(last) // 2 if state.rule.offset is None else state.rule.offset
    at = min(max(offset + len(last) if offset < 0 else offset, 0), len(last) - 1)
    state.fired += 1
    raw = encode_message([*parts, last[:at] + bytes((last[at] ^ 0xFF,)) + last[at + 1 :]])
    flow.forward(Unit(unit.kind, unit.number, unit.nth, raw), state.rule.index, "corrupted")
    return True


def truncate(flow: Flow, unit: Unit, state: RuleState) -> bool:
    """The end of the message's last part is missing."""
    if unit.message is None or len(unit.message.bodies[-1]) <= state.rule.keep:
        return False
    *parts, last = unit.message.bodies
    state.fired += 1
    raw = encode_message([*parts, last[: state.rule.keep]])
    flow.forward(Unit(unit.kind, unit.number, unit.nth, raw), state.rule.index, "truncated")
    return True


def duplicate(flow: Flow, unit: Unit, state: RuleState) -> bool:
    """The message goes on, and then once more."""
    if unit.message is None:
        return False
    state.fired += 1
    flow.forward(unit, state.rule.index)
    flow.inject(unit.message.bodies, state.rule.index)
    return True


def foreign(flow: Flow, unit: Unit, state: RuleState) -> bool:
    """A message that was never meant for this run goes first."""
    if unit.message is None:
        return False
    parts = flow.moved(unit.message) if state.rule.data is None else [state.rule.data]
    if parts:
        state.fired += 1
        flow.inject(parts, state.rule.index)
    return False


ACTIONS: dict[str, Callable[[Flow, Unit, RuleState], bool]] = {
    "drop": drop,
    "hold": hold,
    "lag": lag,
    "reorder": reorder,
    "stall": stall,
    "slow": slow,
    "refuse": refuse,
    "reset": reset,
    "corrupt": corrupt,
    "truncate": truncate,
    "duplicate": duplicate,
    "foreign": foreign,
}
