"""The envelope around every frame of the links `relay` and `control`, as a pure codec.

Layout, little endian, :data:`HEADER`: magic byte 0xC1 (which msgpack never emits, so that no payload can pass for a
frame), version, kind, epoch (64 bits, random per run), sequence number (64 bits), payload length, CRC-32 of the header
before it and the payload. The payload is msgpack.

Numbering on `relay`: either HELLO counts rounds from 1 and DONE follows the last hello by one, or there is one GO with
number 0; STEP, FAIL and STOP then count from 1. On `control` (JOIN, FAIL, RESULT) every sender counts from 1.
"""

from __future__ import annotations

import enum
import struct
import zlib
from typing import NamedTuple, TypeVar

import msgspec

from engine.errors import Accused, EngineError, PeerFailed, RelayError

MAGIC = 0xC1
VERSION = 1
HEADER = struct.Struct("<BBBQQII")
_PREFIX = struct.Struct("<BBBQQI")


class FrameKind(enum.IntEnum):
    """What a frame says."""

    HELLO = 1
    DONE = 2
    STEP = 3
    FAIL = 4
    STOP = 5
    GO = 6
    JOIN = 7
    RESULT = 8


PayloadT = TypeVar("PayloadT", bound=msgspec.Struct)


class Go(msgspec.Struct, frozen=True, array_like=True):
    """Payload of GO: `joined` ranks are in; `until` is rank 0's deadline for the start, monotonic seconds."""

    joined: int
    until: float


class Done(msgspec.Struct, frozen=True, array_like=True):
    """Payload of DONE: the handshake took `rounds`, `joined` ranks are in."""

    rounds: int
    joined: int


class Step(msgspec.Struct, frozen=True, array_like=True):
    """Payload of STEP: all raw request messages of one iteration, and how many they are."""

    count: int
    raws: list[bytes]


class Join(msgspec.Struct, frozen=True, array_like=True):
    """Payload of JOIN: who comes, with which version of the engine and which configuration (a digest)."""

    rank: int
    pid: int
    version: str
    digest: str


class Place(NamedTuple):
    """Where a rank is among its collectives: how many it has begun, when the last one (monotonic seconds), and whether
    it is still inside that one."""

    begun: int
    since: float
    inside: bool

    def came_late(self, begun: int, at: float) -> bool:
        """Whether this rank kept one waiting whose deadline passed at `at`, in the collective of number `begun`."""
        if self.begun > begun:
            return False
        return self.since > at if self.inside else self.begun < begun


class Fail(msgspec.Struct, frozen=True, array_like=True):
    """Payload of FAIL: what the sending rank knows.

    `culprit` is the role that failed first, empty if the sender cannot tell. After a deadline, `begun` is how many
    collectives the sender has begun and `at` when the deadline passed (monotonic seconds); else both are 0. All ranks
    begin the same collectives, so a rank that came to that one after the deadline, or has not come to it and is in none
    before, is the one that was waited for. A rank that is still inside an earlier one waits for the same as the sender.
    """

    rank: int
    culprit: str
    cause: str
    begun: int = 0
    at: float = 0.0

    def heard_by(self, role: str, place: Place) -> EngineError:
        """What rank `role` has to raise when it is told so at that place of its own."""
        late = not self.culprit and self.at > 0 and place.came_late(self.begun, self.at)
        if late or self.culprit == role:
            return Accused(f"accused by rank {self.rank}: {self.cause}")
        return PeerFailed(self.culprit, self.cause)


class Result(msgspec.Struct, frozen=True, array_like=True):
    """Payload of RESULT: what a rank's part of a collective call came to.

    `call` counts the engine's collective calls from 1. `content` is the encoded value; `failure` is why there is none.
    """

    rank: int
    call: int
    failure: str | None
    content: bytes


class Frame(msgspec.Struct, frozen=True):
    """One relay frame, decoded as far as the envelope goes."""

    kind: FrameKind
    epoch: int
    number: int
    payload: bytes

    def __str__(self) -> str:
        return f"{self.kind.name} {self.number}"


def encode(kind: FrameKind, epoch: int, number: int, payload: msgspec.Struct | None = None) -> bytes:
    """The bytes of a frame."""
    body = msgspec.msgpack.encode(payload)
    prefix = _PREFIX.pack(MAGIC, VERSION, kind, epoch, number, len(body))
    return prefix + struct.pack("<I", zlib.crc32(body, zlib.crc32(prefix))) + body


def decode(raw: bytes) -> Frame:
    """The frame in `raw`. Raises :class:`RelayError` if it is not a whole, undamaged frame of this protocol."""
    if len(raw) < HEADER.size:
        raise RelayError(f"relay frame of {len(raw)} bytes, expected at least {HEADER.size}")
    magic, version, kind, epoch, number, length, checksum = HEADER.unpack_from(raw)
    if magic != MAGIC or version != VERSION:
        raise RelayError(
            f"relay frame begins with {magic:#04x} version {version}, expected {MAGIC:#04x} version {VERSION}"
        )
    body = raw[HEADER.size :]
    if len(body) != length:
        raise RelayError(f"relay frame {kind}/{number} carries {len(body)} bytes, its header says {length}")
    if zlib.crc32(body, zlib.crc32(raw[: _PREFIX.size])) != checksum:
        raise RelayError(f"relay frame {kind}/{number} is damaged: its checksum does not match")
    if kind not in list(FrameKind):
        raise RelayError(f"relay frame {number} is of unknown kind {kind}")
    return Frame(FrameKind(kind), epoch, number, body)


def payload(frame: Frame, kind: type[PayloadT]) -> PayloadT:
    """What the frame carries. Raises :class:`RelayError` if that cannot be read as `kind`."""
    try:
        return msgspec.msgpack.decode(frame.payload, type=kind)
    except msgspec.MsgspecError as error:
        raise RelayError(f"relay frame {frame} carries an unreadable payload: {error}") from error


HANDSHAKE = (FrameKind.HELLO, FrameKind.DONE)
GO_ONLY = (FrameKind.GO,)
_SERVICE = (FrameKind.STEP, FrameKind.STOP)


class Sequence:
    """What a receiver may be sent next: one run's epoch, the kinds of the present state, numbers without gap or repeat.

    `opening` are the kinds that come before service, none if service begins at once. Before the handshake's first hello
    the number is open, since a subscriber that comes late has missed some.
    """

    def __init__(self, epoch: int, opening: tuple[FrameKind, ...] = HANDSHAKE) -> None:
        self._epoch = epoch
        self._known = opening or _SERVICE
        self._last = "nothing"
        self._expected: int | None = {HANDSHAKE: None, GO_ONLY: 0}.get(opening, 1)

    def accept(self, raw: bytes) -> Frame:
        """Decode the next frame. Raises :class:`RelayError`, naming it and what was expected, if it cannot be next."""
        frame = decode(raw)
        if frame.epoch != self._epoch:
            raise RelayError(f"relay frame {frame} is of foreign epoch {frame.epoch:#x}, expected {self._epoch:#x}")
        if frame.kind is FrameKind.FAIL:
            self._check_fail(frame)
            return frame
        if frame.kind not in self._known:
            raise RelayError(f"relay frame {frame} after {self._last}, expected {_either(self._known)}")
        if self._expected is None:
            if frame.kind is FrameKind.DONE:
                raise RelayError(f"relay frame {frame} before any hello")
        elif frame.number != self._expected:
            kind = "repeats or goes back" if frame.number < self._expected else "leaves a gap"
            raise RelayError(f"relay frame {frame} {kind} after {self._last}, expected {self._expected}")
        if frame.kind in (FrameKind.DONE, FrameKind.GO):
            self._known = _SERVICE
            self._last, self._expected = f"{frame.kind.name} 0", 1
        else:
            self._last, self._expected = str(frame), frame.number + 1
        return frame

    def _check_fail(self, frame: Frame) -> None:
        """A FAIL ends the run whenever it comes; but frames that were lost before it are why, and so are told first."""
        if self._expected is not None and frame.number > self._expected:
            told = payload(frame, Fail)
            raise RelayError(
                f"relay frame {frame} leaves a gap after {self._last}, expected {self._expected}; it says: {told.cause}"
            )


def _either(kinds: tuple[FrameKind, ...]) -> str:
    return " or ".join(kind.name for kind in kinds)
