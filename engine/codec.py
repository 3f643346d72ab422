"""Records to frames and back: msgpack bodies, and the large arrays in them as frames of their own.

A message is one body, then its aux frames. A body ends with its checksum, so that a damaged one is an error and not
other tokens. An array in a record becomes an extension in the body (code :data:`ARRAY`): its type, its shape, and
either its content (below :data:`INLINE_BELOW` bytes) or the index of the aux frame that is its content. Nothing is
copied on the way: an aux frame is the array's own memory, and a decoded array lies in the frame that brought it. Nor is
its content checked: its owner may write to it until the send is over. There is no pickle.
"""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

Buffer = bytes | bytearray | memoryview

ARRAY = 3
"""The extension code of an array."""

INLINE_BELOW = 256
"""Arrays of fewer bytes travel inside the body: a frame of their own would cost more than copying them."""

DEEPER = 200
"""Levels of nesting that a value must leave free for its reader, whose stack may be deeper than its writer's."""

ITEM_SIZES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}
"""Bytes of one number, by the name of its type in torch."""

CHECKSUM_BYTES = 4
"""A body's last bytes: the CRC-32 of those before them, little endian."""

T = TypeVar("T")


def packed(record: Any) -> bytes:
    """The body of a record that holds no arrays. Raises TypeError, ValueError or OverflowError for any other."""
    return sealed(msgspec.msgpack.encode(record))


def unsealed(body: Buffer) -> memoryview:
    """A body without its checksum. Raises :class:`msgspec.DecodeError` if it is not the body's."""
    content = memoryview(body)[:-CHECKSUM_BYTES]
    if zlib.crc32(content) != int.from_bytes(body[-CHECKSUM_BYTES:], "little") or len(body) < CHECKSUM_BYTES:
        raise msgspec.DecodeError("its checksum does not match")
    return content


def sealed(content: bytes) -> bytes:
    """The body with that content: its checksum behind it."""
    return content + zlib.crc32(content).to_bytes(CHECKSUM_BYTES, "little")


class Array:
    """A dense array on its way: the type's name in torch, the shape, the row-major little-endian content.

    Whoever sends one must leave its memory alone until the send is over. Raises ValueError if the content is not of
    the size that type and shape say, KeyError for a type that is not in :data:`ITEM_SIZES`.
    """

    __slots__ = ("data", "dtype", "shape")

    def __init__(self, dtype: str, shape: Sequence[int], data: Buffer) -> None:
        self.dtype = dtype
        self.shape = tuple(shape)
        self.data = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
        size = math.prod(self.shape) * ITEM_SIZES[dtype]
        if min(self.shape, default=0) < 0 or self.data.nbytes != size:
            raise ValueError(f"{self.data.nbytes} bytes for {dtype} of shape {list(self.shape)}, expected {size}")

    @classmethod
    def of(cls, value: Any) -> Array:
        """The array that a numpy array, a torch tensor (of any device and strides) or an :class:`Array` holds.

        Its memory is shared where it is dense and on the CPU. Raises TypeError for anything else, and for types of
        numbers that are not in :data:`ITEM_SIZES`.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, np.ndarray):
            little = np.ascontiguousarray(value, value.dtype.newbyteorder("<")).reshape(value.shape)
            if little.dtype.name not in ITEM_SIZES:
                raise TypeError(f"an array of {value.dtype} cannot be sent, only {', '.join(ITEM_SIZES)}")
            return cls(little.dtype.name, little.shape, little.reshape(-1).view(np.uint8).data)
        torch = sys.modules.get("torch")  # whoever has a tensor has imported it
        if torch is not None and isinstance(value, torch.Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            if dtype not in ITEM_SIZES:
                raise TypeError(f"a tensor of {value.dtype} cannot be sent, only {', '.join(ITEM_SIZES)}")
            dense = value.detach().cpu().contiguous()
            return cls(dtype, dense.shape, dense.reshape(-1).view(torch.uint8).numpy().data)
        raise TypeError(f"expected a numpy array, a torch tensor or an Array, got {type(value).__name__}")

    def numpy(self) -> np.ndarray[Any, Any]:
        """The content as numpy sees it, in the same memory, so read-only if that is; bfloat16 becomes a float32."""
        if self.dtype == "bfloat16":
            # The upper half of a float32.
            bits = np.frombuffer(self.data, "<u2").reshape(self.shape).astype(np.uint32) << np.uint32(16)
            return bits.view(np.float32)
        return np.frombuffer(self.data, np.dtype(self.dtype).newbyteorder("<")).reshape(self.shape)

    def tensor(self) -> Any:
        """The content as a torch tensor of its own memory."""
        import torch

        flat = torch.frombuffer(bytearray(self.data), dtype=getattr(torch, self.dtype)) if self.data.nbytes else None
        return torch.empty(self.shape, dtype=getattr(torch, self.dtype)) if flat is None else flat.reshape(self.shape)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Array):
            return NotImplemented
        return (self.dtype, self.shape, self.data) == (other.dtype, other.shape, other.data)

    __hash__ = None  # type: ignore[assignment]  # its memory may change

    def __repr__(self) -> str:
        return f"Array({self.dtype}, {list(self.shape)}, {self.data.nbytes} bytes)"


class Encoder:
    """Makes frames of records. `inline_below` in bytes; None keeps every array in the body. Not for several threads."""

    def __init__(self, inline_below: int | None = INLINE_BELOW) -> None:
        self._inline_below = inline_below
        self._aux: list[memoryview] = []
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._hook)

    def encode(self, record: Any) -> list[bytes | memoryview]:
        """The body, then the aux frames, which are the arrays' own memory.

        Raises TypeError, ValueError or OverflowError for a value that cannot be sent.
        """
        self._aux = []
        try:
            return [sealed(self._encoder.encode(record)), *self._aux]
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        finally:
            self._aux = []

    def _hook(self, value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        array = Array.of(value)
        content: int | bytes = len(self._aux)
        if self._inline_below is None or array.data.nbytes < self._inline_below:
            content = bytes(array.data)
        else:
            self._aux.append(array.data)
        return msgspec.msgpack.Ext(ARRAY, _packer.encode((array.dtype, array.shape, content)))


class Decoder(Generic[T]):
    """Makes records of one type of frames. Not for several threads."""

    def __init__(self, kind: type[T]) -> None:
        self._aux: Sequence[Buffer] = ()
        self._used = 0
        self._decoder = msgspec.msgpack.Decoder(kind, ext_hook=self._hook)

    def decode(self, frames: Sequence[Buffer]) -> T:
        """The record of a body and its aux frames, in whose memory its arrays lie.

        Raises :class:`msgspec.MsgspecError` for anything that is not exactly such a message.
        """
        if not frames:
            raise msgspec.DecodeError("a message without frames")
        self._aux, self._used = frames[1:], 0
        try:
            record = self._decoder.decode(unsealed(frames[0]))
            if self._used != len(self._aux):
                raise msgspec.DecodeError(f"{len(self._aux)} aux frames, of which {self._used} are used")
            return record
        except RecursionError:
            raise msgspec.DecodeError("it is nested too deeply") from None
        finally:
            self._aux, self._used = (), 0

    def _hook(self, code: int, data: memoryview) -> Any:
        if code != ARRAY:
            raise msgspec.DecodeError(f"extension {code} is not known")
        dtype, shape, content = _wire.decode(data)
        buffer: Buffer
        if isinstance(content, bytes):
            buffer = content
        else:
            # In the order of writing, each once: any other order is not of this encoder's making.
            if content != self._used or content >= len(self._aux):
                raise msgspec.DecodeError(f"aux frame {content} of {len(self._aux)}, expected {self._used}")
            self._used += 1
            buffer = self._aux[content]
        try:
            return Array(dtype, shape, buffer)
        except (KeyError, ValueError) as error:
            raise msgspec.DecodeError(f"an array is not one: {error}") from None


def prove_sendable(value: Any) -> None:
    """Raise whatever keeps a value from being written here, or from being read by somebody who is deeper in calls."""
    for _ in range(DEEPER):
        value = [value]
    Decoder(object).decode(Encoder().encode(value))


_packer = msgspec.msgpack.Encoder()
_wire: msgspec.msgpack.Decoder[tuple[str, list[int], int | bytes]] = msgspec.msgpack.Decoder(
    tuple[str, list[int], int | bytes]
)
