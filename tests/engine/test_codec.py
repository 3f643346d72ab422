"""Records and arrays survive the way over the wire bit by bit, without a copy, and nothing else passes for one."""

from __future__ import annotations

import contextlib
import math
import zlib
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.codec import INLINE_BELOW, ITEM_SIZES, Array, Decoder, Encoder, packed, prove_sendable, sealed
from engine.messages import Add, Logprobs, Outputs, Request, SamplingParams, Startup, UtilityOutput

SIZES = st.sampled_from((0, 1, INLINE_BELOW - 8, INLINE_BELOW, INLINE_BELOW + 8, 65_536, 2**20, 2**20 + 8))


class Record(msgspec.Struct, array_like=True):
    """Arrays where records have them: in a field, in a list, and where anything may stand."""

    one: Array | None
    some: list[Array]
    anything: Any


def array(dtype: str, *shape: int, seed: int = 0) -> Array:
    size = math.prod(shape) * ITEM_SIZES[dtype]
    data = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 256, size, np.uint8)
    return Array(dtype, shape, data.tobytes())


@given(
    st.lists(st.tuples(st.sampled_from(sorted(ITEM_SIZES)), SIZES), max_size=5),
    st.one_of(st.none(), st.integers(0, 4)),
)
def test_arrays_of_every_type_and_size_come_back_bit_by_bit(kinds: list[tuple[str, int]], below: int | None) -> None:
    arrays = [array(dtype, size // ITEM_SIZES[dtype], seed=n) for n, (dtype, size) in enumerate(kinds)]
    record = Record(arrays[0] if arrays else None, arrays, {"in": [arrays, "text", 1.5, None]})
    encoder = Encoder(INLINE_BELOW) if below is None else Encoder(None if below == 0 else below * 100)
    frames = [bytes(frame) for frame in encoder.encode(record)]
    if below == 0:
        assert len(frames) == 1
    back = Decoder(Record).decode(frames)
    assert back.one == record.one
    assert back.some == arrays
    assert back.anything == {"in": [arrays, "text", 1.5, None]}


@pytest.mark.parametrize("dtype", sorted(ITEM_SIZES))
def test_tensors_and_numpy_arrays_are_what_they_were(dtype: str) -> None:
    kind = getattr(torch, dtype)
    tensor = torch.arange(24).reshape(2, 3, 4).to(kind)
    for given_one in (tensor, tensor.transpose(0, 2), tensor[:, ::2], torch.zeros((0, 4), dtype=kind)):
        back = Array.of(given_one)
        assert back.tensor().dtype == kind
        assert torch.equal(back.tensor(), given_one)
        if dtype != "bfloat16":
            plain = given_one.numpy()
            assert np.array_equal(back.numpy(), plain)
            assert Array.of(plain) == back
            assert Array.of(plain.astype(plain.dtype.newbyteorder(">"))) == back
    assert np.array_equal(Array.of(tensor).numpy(), tensor.float().numpy() if dtype == "bfloat16" else tensor.numpy())


def test_an_aux_frame_is_the_array_s_own_memory_and_a_decoded_array_lies_in_its_frame() -> None:
    values = np.arange(1000.0)
    body, aux = Encoder().encode(Record(Array.of(values), [], None))
    values[7] = -1
    assert np.frombuffer(aux)[7] == -1
    frame = bytearray(aux)
    back = Decoder(Record).decode([bytes(body), frame]).one
    assert back is not None
    frame[:8] = np.float64(99).tobytes()
    assert back.numpy()[0] == 99


@pytest.mark.parametrize("size", [INLINE_BELOW - 1, INLINE_BELOW])
def test_the_threshold_is_where_it_says(size: int) -> None:
    frames = Encoder().encode(Record(array("uint8", size), [], None))
    assert len(frames) == (1 if size < INLINE_BELOW else 2)


def test_what_is_no_message_is_refused() -> None:
    decoder = Decoder(Record)
    body, first, second = (
        bytes(frame) for frame in Encoder().encode(Record(array("int8", 300), [array("int8", 400)], 0))
    )
    assert decoder.decode([body, first, second]).one == array("int8", 300)
    for frames in (
        [],
        [b""],
        [body],
        [body, first],
        [body, second, first],
        [body, first, second, b""],
        [body, first[:-1], second],
        [body[:-1], first, second],
        [b"\xc1", first, second],
        [sealed(b"\xc1"), first, second],
        [packed([None, [], msgspec.msgpack.Ext(1, b"pickle")])],
        [packed([None, [], msgspec.msgpack.Ext(3, b"\x00")])],
        [_with_array("int8", [2], 0), b"xx", b"yy"],
        [_with_array("object", [1], b"x")],
        [_with_array("int8", [-1, -1], b"x")],
        [_with_array("int8", [2**62, 4], b"")],
        [_with_array("int8", [1], -1), b"x"],
    ):
        with pytest.raises(msgspec.MsgspecError):
            decoder.decode(frames)
    assert decoder.decode([body, first, second]).some == [array("int8", 400)]


def _with_array(dtype: str, shape: list[int], content: int | bytes) -> bytes:
    array_ = msgspec.msgpack.encode((dtype, shape, content))
    return packed([msgspec.msgpack.Ext(3, array_), [], None])


@given(st.binary(max_size=200), st.lists(st.binary(max_size=20), max_size=2), st.booleans())
def test_any_bytes_are_a_record_or_refused(content: bytes, aux: list[bytes], damaged: bool) -> None:
    checksum = (zlib.crc32(content) ^ damaged).to_bytes(4, "little")
    for kind in (Record, Outputs, Add, Startup):
        with contextlib.suppress(msgspec.MsgspecError):
            Decoder(kind).decode([content + checksum, *aux])  # type: ignore[arg-type]
            assert not damaged


@pytest.mark.parametrize("record", [Outputs(1, 0, []), Add(7, Request("a", [1, 2]))])
def test_whatever_byte_of_a_body_is_damaged_it_is_refused(record: Outputs | Add) -> None:
    whole = packed(record)
    assert Decoder(type(record)).decode([whole]) == record == Decoder(type(record)).decode(Encoder().encode(record))
    for place in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            with pytest.raises(msgspec.MsgspecError, match="checksum"):
                Decoder(type(record)).decode([damaged])


def test_what_cannot_be_sent_is_refused_by_the_sender() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for value in (object(), {1, 2}.__iter__(), np.array(["text"]), np.zeros(2, "complex64"), 2**70, endless, "\ud800"):
        with pytest.raises((TypeError, ValueError, OverflowError)):
            Encoder().encode(Record(None, [], value))


def test_numbers_of_numpy_travel_as_numbers() -> None:
    back = Decoder(UtilityOutput).decode(Encoder().encode(UtilityOutput(1, None, [np.float32(0.5), np.int64(3)])))
    assert back.result == [0.5, 3]


def test_records_with_arrays_are_equal_when_their_content_is() -> None:
    rows = np.arange(96, dtype=np.float32).reshape(1, 96)
    request = Request("a", [], SamplingParams(1), Array.of(rows))
    frames = Encoder().encode(Add(1, request))
    assert Decoder(Add).decode(frames).request == request
    logprobs = Logprobs(Array.of(np.array([-0.5])), Array.of(np.array([[3, 1]])), Array.of(np.array([[-0.5, -2.0]])))
    back = Decoder(Logprobs).decode(Encoder().encode(logprobs))
    assert back == logprobs
    assert [(one.logprob, one.top) for one in back] == [(-0.5, [(3, -0.5), (1, -2.0)])]


def test_what_a_deeper_reader_could_not_read_is_refused_by_the_sender() -> None:
    def nested(levels: int) -> list[Any]:
        value: list[Any] = []
        for _ in range(levels):
            value = [value]
        return value

    prove_sendable(nested(400))
    deepest = max(levels for levels in range(400, 1100) if _readable(nested(levels)))
    with pytest.raises((ValueError, msgspec.MsgspecError)):
        prove_sendable(nested(deepest))


def _readable(value: Any) -> bool:
    try:
        Decoder(object).decode(Encoder().encode(value))
    except (ValueError, msgspec.MsgspecError):
        return False
    return True
