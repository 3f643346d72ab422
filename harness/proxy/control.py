"""The control socket's language: requests, replies, and frames of a four-octet little-endian length and msgpack."""

from __future__ import annotations

import msgspec

from harness.proxy.records import FrameRule, LedgerSlice, Leg, RunEnd, Status

_LENGTH = 4


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Start a run; the reply is `Begun`. `classify` and `foreign` are `module:function`, or None for none."""

    legs: list[Leg]
    rules: list[FrameRule]
    classify: str | None
    foreign: str | None


class GetStatus(msgspec.Struct, frozen=True, tag="status"):
    """Move all that can be moved, then reply with `Status`."""


class GetLedger(msgspec.Struct, frozen=True, tag="ledger"):
    """Reply with `LedgerSlice`."""

    since: int


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Let go what rule `index` holds, now and later."""

    index: int


class Add(msgspec.Struct, frozen=True, tag="add"):
    """Put one more rule in force."""

    rule: FrameRule


class Withdraw(msgspec.Struct, frozen=True, tag="withdraw"):
    """Rule `index` acts no more, and lets go what it holds."""

    index: int


class Heal(msgspec.Struct, frozen=True, tag="heal"):
    """Let go every hold; no rule that there is acts from now on."""


class End(msgspec.Struct, frozen=True, tag="end"):
    """Close everything of the run; the reply is `RunEnd`."""


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """The addresses listened on, in the order of the legs."""

    listens: list[str]


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The request was carried out."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The request was refused, and why."""

    error: str


Request = Begin | GetStatus | GetLedger | Add | Withdraw | Release | Heal | End
Reply = Begun | Status | LedgerSlice | RunEnd | Done | Failed


def pack(message: Request | Reply) -> bytes:
    """One framed message."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(_LENGTH, "little") + body


class Splitter:
    """Collects stream bytes and gives back the bodies of whole messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Take bytes as they come."""
        self._buffer += data

    def next(self) -> bytes | None:
        """The body of the next whole message, or None."""
        if len(self._buffer) < _LENGTH:
            return None
        end = _LENGTH + int.from_bytes(self._buffer[:_LENGTH], "little")
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_LENGTH:end])
        del self._buffer[:end]
        return body
