"""A relay frame that is not the next one raises an error that names it."""

from __future__ import annotations

import pytest

from engine.errors import Accused, PeerFailed, RelayError
from engine.relay import frames
from engine.relay.frames import Done, Fail, FrameKind, Go, Place, Sequence, Step

EPOCH = 0x1234_5678_9ABC_DEF0


def hello(number: int, epoch: int = EPOCH) -> bytes:
    return frames.encode(FrameKind.HELLO, epoch, number)


def done(number: int) -> bytes:
    return frames.encode(FrameKind.DONE, EPOCH, number, Done(number - 1, 1))


def step(number: int) -> bytes:
    return frames.encode(FrameKind.STEP, EPOCH, number, Step(0, []))


def serving() -> Sequence:
    """A receiver that has joined at hello 3 and got its DONE."""
    sequence = Sequence(EPOCH)
    for raw in (hello(3), hello(4), done(5)):
        sequence.accept(raw)
    return sequence


def test_a_late_subscriber_follows_from_its_first_hello_on() -> None:
    sequence = serving()
    assert [str(sequence.accept(step(n))) for n in (1, 2, 3)] == ["STEP 1", "STEP 2", "STEP 3"]


def test_a_frame_survives_its_encoding() -> None:
    frame = frames.decode(frames.encode(FrameKind.STEP, EPOCH, 2**63, Step(2, [b"a", b""])))
    assert (frame.kind, frame.epoch, frame.number) == (FrameKind.STEP, EPOCH, 2**63)
    assert frames.HEADER.size == 27


@pytest.mark.parametrize(
    ("before", "raw", "text"),
    [
        ([step(1)], step(3), "STEP 3 leaves a gap after STEP 1, expected 2"),
        ([step(1), step(2)], step(2), "STEP 2 repeats or goes back after STEP 2, expected 3"),
        ([], step(2), "STEP 2 leaves a gap after DONE 0, expected 1"),
        ([], hello(6), "HELLO 6 after DONE 0, expected STEP"),
        ([], done(6), "DONE 6 after DONE 0"),
    ],
)
def test_gap_repeat_and_handshake_frames_in_service_raise(before: list[bytes], raw: bytes, text: str) -> None:
    sequence = serving()
    for good in before:
        sequence.accept(good)
    with pytest.raises(RelayError, match=text):
        sequence.accept(raw)


@pytest.mark.parametrize(
    ("before", "raw", "text"),
    [
        ([], done(1), "DONE 1 before any hello"),
        ([], step(1), "STEP 1 after nothing, expected HELLO or DONE"),
        ([hello(1)], hello(3), "HELLO 3 leaves a gap after HELLO 1"),
        ([hello(2)], hello(2), "HELLO 2 repeats"),
        ([hello(2)], done(4), "DONE 4 leaves a gap after HELLO 2"),
        ([hello(1)], step(1), "STEP 1 after HELLO 1"),
        ([], hello(1, EPOCH + 1), "foreign epoch"),
    ],
)
def test_wrong_frames_in_the_handshake_raise(before: list[bytes], raw: bytes, text: str) -> None:
    sequence = Sequence(EPOCH)
    for good in before:
        sequence.accept(good)
    with pytest.raises(RelayError, match=text):
        sequence.accept(raw)


def test_damage_anywhere_raises() -> None:
    raw = frames.encode(FrameKind.STEP, EPOCH, 7, Step(1, [b"request"]))
    for index in range(len(raw)):
        damaged = raw[:index] + bytes([raw[index] ^ 0x10]) + raw[index + 1 :]
        with pytest.raises(RelayError):
            frames.decode(damaged)
    for length in range(len(raw)):
        with pytest.raises(RelayError):
            frames.decode(raw[:length])
    with pytest.raises(RelayError):
        frames.decode(raw + b"x")


def test_an_unknown_kind_raises() -> None:
    with pytest.raises(RelayError, match="unknown kind 9"):
        frames.decode(frames.encode(9, EPOCH, 1))  # type: ignore[arg-type]


def go(number: int = 0) -> bytes:
    return frames.encode(FrameKind.GO, EPOCH, number, Go(1, 0.0))


def fail(number: int) -> bytes:
    return frames.encode(FrameKind.FAIL, EPOCH, number, Fail(0, "dp0.rank1", "it went wrong"))


def test_service_begins_with_go_or_at_once() -> None:
    opened, bare = Sequence(EPOCH, frames.GO_ONLY), Sequence(EPOCH, ())
    opened.accept(go())
    assert [str(sequence.accept(step(1))) for sequence in (opened, bare)] == ["STEP 1", "STEP 1"]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (go(1), "GO 1 leaves a gap after nothing, expected 0"),
        (step(1), "STEP 1 after nothing, expected GO"),
        (hello(1), "HELLO 1 after nothing, expected GO"),
        (fail(1), "FAIL 1 leaves a gap after nothing, expected 0; it says: it went wrong"),
    ],
)
def test_wrong_frames_before_go_raise(raw: bytes, text: str) -> None:
    with pytest.raises(RelayError, match=text):
        Sequence(EPOCH, frames.GO_ONLY).accept(raw)


def test_a_fail_ends_a_run_at_any_time_but_tells_of_frames_lost_before_it() -> None:
    assert str(Sequence(EPOCH, frames.GO_ONLY).accept(fail(0))) == "FAIL 0"
    assert str(Sequence(EPOCH).accept(fail(7))) == "FAIL 7"
    sequence = serving()
    sequence.accept(step(1))
    assert str(sequence.accept(fail(2))) == "FAIL 2"
    with pytest.raises(RelayError, match="FAIL 3 leaves a gap after STEP 1, expected 2; it says: it went wrong"):
        sequence.accept(fail(3))


def test_a_payload_of_another_shape_raises() -> None:
    with pytest.raises(RelayError, match="GO 0 carries an unreadable payload"):
        frames.payload(frames.decode(go()), Step)


@pytest.mark.parametrize(
    ("culprit", "place", "accused"),
    [
        ("dp0.rank1", Place(9, 0.0, False), True),  # named
        ("dp0.rank2", Place(1, 0.0, False), False),  # another is named, however late this one is
        ("", Place(7, 5.0, False), True),  # has not come to it
        ("", Place(7, 9.0, True), False),  # waits in the one before, for whoever keeps the sender waiting too
        ("", Place(7, 11.0, True), True),  # came to the one before after the deadline
        ("", Place(8, 11.0, True), True),  # came to the same one after the deadline
        ("", Place(8, 9.0, True), False),  # waited in it too
        ("", Place(8, 9.0, False), False),  # is through it
        ("", Place(9, 11.0, True), False),
    ],
)
def test_who_is_named_or_came_too_late_is_accused(culprit: str, place: Place, accused: bool) -> None:
    told = Fail(0, culprit, "not finished", begun=8, at=10.0).heard_by("dp0.rank1", place)
    assert isinstance(told, Accused if accused else PeerFailed)
    assert "not finished" in str(told)


def test_only_a_deadline_makes_the_late_one_guilty() -> None:
    assert isinstance(Fail(0, "", "connection closed").heard_by("dp0.rank1", Place(0, 99.0, True)), PeerFailed)
