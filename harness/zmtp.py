"""ZMTP 3.x as a pure state machine: the bytes of one direction of one connection in, greeting chunks and frames out.

No sockets and no clock live here. The reader must never hold greeting bytes back: libzmq sends the first ten and waits
for its peer's ten, so a relay that collects all 64 stops both sides for ever. Source: https://rfc.zeromq.org/spec/37/
(ZMTP 3.1) and spec 23 (ZMTP 3.0). Mechanisms that encrypt (CURVE) are read as commands; their insides are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

MORE = 0x01
LONG = 0x02
COMMAND = 0x04
RESERVED = 0xF8

GREETING_SIZE = 64
DEFAULT_LIMIT = 1 << 28
"""Largest body accepted, in bytes, unless the caller says otherwise (256 MiB)."""


class Subscription(msgspec.Struct, frozen=True, gc=False):
    """What a subscriber asked for: `subscribe` is False for a cancellation."""

    subscribe: bool
    topic: bytes


class Greeting(msgspec.Struct, frozen=True, gc=False):
    """Some consecutive bytes of the 64-byte greeting, to be forwarded as they are."""

    raw: bytes


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One frame: its flags octet, its body, and `raw`, the exact bytes it came in (header and body)."""

    flags: int
    body: bytes
    raw: bytes

    @property
    def command(self) -> bool:
        """Whether this is a command (READY, SUBSCRIBE, PING, ...) and not part of a message."""
        return bool(self.flags & COMMAND)

    @property
    def more(self) -> bool:
        """Whether further frames of the same message follow."""
        return bool(self.flags & MORE)

    @property
    def long(self) -> bool:
        """Whether the size was written in eight octets."""
        return bool(self.flags & LONG)

    @property
    def name(self) -> str | None:
        """The name of a command, None for a message frame."""
        if not self.flags & COMMAND:
            return None
        return self.body[1 : 1 + self.body[0]].decode("ascii")

    @property
    def data(self) -> bytes:
        """What follows the name in a command; the body of a message frame."""
        if not self.flags & COMMAND:
            return self.body
        return self.body[1 + self.body[0] :]

    @property
    def subscription(self) -> Subscription | None:
        """The subscription this frame carries: a SUBSCRIBE or CANCEL command, or a message of 0x01 or 0x00 and a topic.

        The message form (ZMTP 3.0) means a subscription only in a direction whose sender is a SUB or XSUB socket;
        elsewhere the same bytes are data. The frame cannot know that: ask `properties` of the sender's READY.
        """
        if self.flags & COMMAND:
            name = self.name
            if name in ("SUBSCRIBE", "CANCEL"):
                return Subscription(name == "SUBSCRIBE", self.data)
            return None
        if self.flags & MORE or self.body[:1] not in (b"\x00", b"\x01"):
            return None
        return Subscription(self.body[0] == 1, self.body[1:])

    @property
    def properties(self) -> dict[str, bytes]:
        """The metadata of a READY or INITIATE command, such as `socket-type`; names in lower case.

        Raises `ZmtpError` when the metadata is cut short; its offset counts from the start of the metadata.
        """
        data, at, found = self.data, 0, {}
        while at < len(data):
            name_end = at + 1 + data[at]
            value_at = name_end + 4
            value_end = value_at + int.from_bytes(data[name_end:value_at], "big")
            if value_at > len(data) or value_end > len(data):
                raise ZmtpError(at, "a property name, a four-octet size and a value of that size", data[at : at + 16])
            found[data[at + 1 : name_end].decode("latin-1").lower()] = data[value_at:value_end]
            at = value_end
        return found


class Message(msgspec.Struct, frozen=True, gc=False):
    """One whole message: one or more frames, the last without MORE."""

    frames: tuple[Frame, ...]

    @property
    def bodies(self) -> list[bytes]:
        """The parts of the message as a user of the socket sees them."""
        return [frame.body for frame in self.frames]

    @property
    def raw(self) -> bytes:
        """The exact bytes the message came in."""
        frames = self.frames
        return frames[0].raw if len(frames) == 1 else b"".join([frame.raw for frame in frames])


Item = Greeting | Frame
Unit = Greeting | Frame | Message


class ZmtpError(Exception):
    """The stream is not ZMTP 3.x from `offset` (in bytes from its first) on.

    `items` were read in the same call before the fault; `rest` is every byte received and not part of an item, so that
    a relay can still pass on exactly what came in.
    """

    def __init__(self, offset: int, expected: str, seen: bytes, items: Sequence[Unit] = (), rest: bytes = b"") -> None:
        super().__init__(f"not ZMTP at byte {offset}: expected {expected}, got {seen.hex(' ') or 'nothing'}")
        self.offset = offset
        self.expected = expected
        self.seen = seen
        self.items = tuple(items)
        self.rest = rest


class Parser:
    """Reads one direction of one connection; `limit` is the largest frame body accepted, in bytes."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        self._offset = 0  # of the first byte of _buffer in the stream
        self._buffer = bytearray()
        self._need = 1  # bytes in _buffer before the next frame can be complete
        self._greeting = b""
        self._error: ZmtpError | None = None

    @property
    def version(self) -> tuple[int, int] | None:
        """Major and minor version the sender announced, None until both have come."""
        return (self._greeting[10], self._greeting[11]) if len(self._greeting) >= 12 else None

    @property
    def mechanism(self) -> str | None:
        """The security mechanism the sender announced, None until it has come."""
        if len(self._greeting) < 32:
            return None
        return self._greeting[12:32].rstrip(b"\0").decode("latin-1")

    @property
    def pending(self) -> int:
        """Bytes received that are not yet part of an item."""
        return len(self._buffer)

    def flush(self) -> bytes:
        """Give up the bytes of an unfinished frame, for a relay whose sender has gone."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def feed(self, data: bytes) -> list[Item]:
        """Take the next bytes and return the items they complete; raises `ZmtpError`, then and on every later call."""
        if self._error is not None:
            raise ZmtpError(self._error.offset, self._error.expected, self._error.seen, rest=data)
        items: list[Item] = []
        if len(self._greeting) < GREETING_SIZE:
            data = self._read_greeting(data, items)
        if not data:
            return items
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._need:
                return items
            data = bytes(self._buffer)
            self._buffer.clear()
        used = self._read_frames(data, items)
        self._offset += used
        if used < len(data):
            self._buffer += data[used:]
        return items

    def _read_greeting(self, data: bytes, items: list[Item]) -> bytes:
        start = len(self._greeting)
        chunk = data[: GREETING_SIZE - start]
        for at, valid, expected in _GREETING_CHECKS:
            if start <= at < start + len(chunk) and not valid(chunk[at - start]):
                good, bad = chunk[: at - start], data[at - start :]
                if good:
                    items.append(Greeting(good))
                raise self._fail(at, expected, bad[:1], items, bad)
        if chunk:
            items.append(Greeting(chunk))
            self._greeting += chunk
            self._offset += len(chunk)
        return data[len(chunk) :]

    def _read_frames(self, data: bytes, items: list[Item]) -> int:
        """Append the complete frames of `data` to `items`, return the bytes used, and note what the next one needs."""
        at, size = 0, len(data)
        while at < size:
            flags = data[at]
            if flags & RESERVED or flags & (COMMAND | MORE) == COMMAND | MORE:
                expected = "a flags octet of 0 to 4 or 6 (MORE, LONG, COMMAND; a command has no MORE)"
                raise self._fail(self._offset + at, expected, data[at : at + 1], items, data[at:])
            head = 9 if flags & LONG else 2
            body_at = at + head
            if body_at > size:
                self._need = head
                break
            length = int.from_bytes(data[at + 1 : body_at], "big") if flags & LONG else data[at + 1]
            if length > self._limit:
                expected = f"a body of at most {self._limit} bytes"
                raise self._fail(self._offset + at + 1, expected, data[at + 1 : body_at], items, data[at:])
            end = body_at + length
            if end > size:
                self._need = head + length
                break
            body = data[body_at:end]
            if flags & COMMAND and not _named(body):
                expected = "a command: the size of its name and an ASCII name of that size"
                raise self._fail(self._offset + body_at, expected, body[:16], items, data[at:])
            items.append(Frame(flags, body, data[at:end]))
            at = end
        return at

    def _fail(self, offset: int, expected: str, seen: bytes, items: list[Item], rest: bytes) -> ZmtpError:
        self._error = ZmtpError(offset, expected, seen, items, rest)
        return self._error


class Assembler:
    """A `Parser` whose message frames come out grouped into whole messages; commands and greeting as they are.

    A command between two frames of a message (libzmq may put a PING there) comes out before that message.
    """

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self.parser = Parser(limit)
        self._parts: list[Frame] = []

    @property
    def pending(self) -> int:
        """Bytes received that are not yet part of a unit: an unfinished frame and earlier frames of its message."""
        return self.parser.pending + sum([len(part.raw) for part in self._parts])

    def flush(self) -> bytes:
        """Give up the bytes of an unfinished message."""
        return self._give_up_parts() + self.parser.flush()

    def feed(self, data: bytes) -> list[Unit]:
        """Take the next bytes and return the units they complete; raises `ZmtpError` as `Parser.feed` does."""
        try:
            items = self.parser.feed(data)
        except ZmtpError as error:
            units = self._group(error.items)
            rest = self._give_up_parts() + error.rest
            raise ZmtpError(error.offset, error.expected, error.seen, units, rest) from None
        return self._group(items)

    def _give_up_parts(self) -> bytes:
        rest = b"".join([part.raw for part in self._parts])
        self._parts.clear()
        return rest

    def _group(self, items: Iterable[Unit]) -> list[Unit]:
        units: list[Unit] = []
        parts = self._parts
        for item in items:
            if type(item) is not Frame or item.flags & COMMAND:
                units.append(item)
            elif item.flags & MORE:
                parts.append(item)
            elif parts:
                units.append(Message((*parts, item)))
                parts.clear()
            else:
                units.append(Message((item,)))
        return units


def _named(body: bytes) -> bool:
    return bool(body) and 0 < body[0] < len(body) and body[1 : 1 + body[0]].isascii()


_GREETING_CHECKS: tuple[tuple[int, Callable[[int], bool], str], ...] = (
    (0, lambda octet: octet == 0xFF, "0xFF, the first octet of the signature"),
    (9, lambda octet: octet & 1 == 1, "0x7F, the last octet of the signature"),
    (10, lambda octet: octet >= 3, "a major version of 3 or more"),
)


def encode_greeting(mechanism: str = "NULL", minor: int = 1, as_server: bool = False) -> bytes:
    """The 64-byte greeting of ZMTP 3.`minor`."""
    head = b"\xff" + bytes(7) + b"\x01\x7f" + bytes((3, minor)) + mechanism.encode("ascii").ljust(20, b"\0")
    return (head + bytes((as_server,))).ljust(GREETING_SIZE, b"\0")


def encode_frame(body: bytes, *, more: bool = False, command: bool = False, long: bool | None = None) -> bytes:
    """One frame on the wire; `long` writes the size in eight octets (None: only where one octet is too small).

    Raises `ValueError` for a command with MORE, and for `long=False` with a body over 255 bytes.
    """
    if command and more:
        raise ValueError("a command frame cannot have MORE; send it as one frame")
    wide = len(body) > 255 if long is None else long
    if not wide and len(body) > 255:
        raise ValueError(f"a short frame holds at most 255 bytes, this body has {len(body)}; leave `long` out")
    flags = (MORE if more else 0) | (LONG if wide else 0) | (COMMAND if command else 0)
    return bytes((flags,)) + len(body).to_bytes(8 if wide else 1, "big") + body


def encode_command(name: str, data: bytes = b"") -> bytes:
    """One command frame on the wire. Raises `ValueError` for a name that is not 1 to 255 ASCII characters."""
    if not 0 < len(name) < 256 or not name.isascii():
        raise ValueError(f"a command name is 1 to 255 ASCII characters, not {name!r}")
    return encode_frame(bytes((len(name),)) + name.encode("ascii") + data, command=True)


def encode_message(bodies: Sequence[bytes]) -> bytes:
    """One message on the wire, a frame for each part. Raises `ValueError` when there is no part."""
    if not bodies:
        raise ValueError("a message has at least one part, got none")
    last = len(bodies) - 1
    return b"".join([encode_frame(body, more=at < last) for at, body in enumerate(bodies)])
