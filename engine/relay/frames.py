"""The envelope around every relay frame, as a pure codec.

Layout, little endian, :data:`HEADER`: magic byte 0xC1 (which msgpack never emits, so that no payload can pass for a
frame), version, kind, epoch (64 bits, random per run), sequence number (64 bits), payload length, CRC-32 of the header
before it and the payload. The payload is msgpack.

Numbering: HELLO counts rounds from 1 and DONE follows the last hello by one; STEP, FAIL and STOP count from 1 again.
"""

from __future__ import annotations

import enum
import struct
import zlib

import msgspec

from engine.errors import RelayError

MAGIC = 0xC1
VERSION = 1
HEADER = struct.Struct("<BBBQQII")
_PREFIX = struct.Struct("<BBBQQI")


class FrameKind(enum.IntEnum):
    """What a relay frame says."""

    HELLO = 1
    DONE = 2
    STEP = 3
    FAIL = 4
    STOP = 5


class Done(msgspec.Struct, frozen=True, array_like=True):
    """Payload of DONE: the handshake took `rounds`, `joined` ranks are in."""

    rounds: int
    joined: int


class Step(msgspec.Struct, frozen=True, array_like=True):
    """Payload of STEP: all raw request messages of one iteration, and how many they are."""

    count: int
    raws: list[bytes]


class Fail(msgspec.Struct, frozen=True, array_like=True):
    """Payload of FAIL: the role that failed first, and how."""

    culprit: str
    cause: str


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


class Sequence:
    """What a receiver may be sent next: one run's epoch, the kinds of the present state, numbers without gap or repeat.

    Before the handshake's first hello the number is open, since a subscriber that comes late has missed some.
    """

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._last: Frame | None = None
        self._serving = False

    def accept(self, raw: bytes) -> Frame:
        """Decode the next frame. Raises :class:`RelayError`, naming it and what was expected, if it cannot be next."""
        frame = decode(raw)
        if frame.epoch != self._epoch:
            raise RelayError(f"relay frame {frame} is of foreign epoch {frame.epoch:#x}, expected {self._epoch:#x}")
        known = (
            (FrameKind.STEP, FrameKind.FAIL, FrameKind.STOP)
            if self._serving
            else (FrameKind.HELLO, FrameKind.DONE, FrameKind.FAIL)
        )
        if frame.kind not in known:
            raise RelayError(f"relay frame {frame} after {self._last or 'nothing'}, expected {_either(known)}")
        if frame.kind is FrameKind.FAIL:
            return frame  # tells the end of a run; nothing is lost if something before it was
        if self._last is None:
            if frame.kind is FrameKind.DONE:
                raise RelayError(f"relay frame {frame} before any hello")
        elif frame.number != self._last.number + 1:
            kind = "repeats or goes back" if frame.number <= self._last.number else "leaves a gap"
            raise RelayError(f"relay frame {frame} {kind} after {self._last}, expected {self._last.number + 1}")
        self._last = frame
        if frame.kind is FrameKind.DONE:
            self._serving = True
            self._last = Frame(FrameKind.DONE, frame.epoch, 0, b"")
        return frame


def _either(kinds: tuple[FrameKind, ...]) -> str:
    return " or ".join(kind.name for kind in kinds)
