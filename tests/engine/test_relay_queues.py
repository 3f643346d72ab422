"""What a safe relay does with a rank that does not read, and with a message that is large."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from engine import relay
from engine.clock import Deadline
from engine.errors import DeadlineExceeded
from engine.relay import pushpull, subscribed
from engine.relay.frames import FrameKind
from tests.engine.seats import Place, place, within
from tests.engine.wires import SAFE

BURST = 3000


def joined(here: Place, name: str, high_water: int = 1000, step_limit: float = 20.0) -> list[relay.Relay]:
    """All ends of a relay, joined."""
    ends = [here.relay(name, rank, high_water=high_water, step_limit=step_limit) for rank in range(len(here.roles))]
    # The handshake's rounds need a real group; service begins at its end.
    joins = [within(lambda end=end: end.join(Deadline.after(5.0))) for end in ends]  # type: ignore[misc]
    for ended in joins:
        assert ended() is None
    return ends


def read(end: relay.Relay, count: int) -> list[list[bytes]]:
    return [end.follow(idle=True) for _ in range(count)]


def messages(first: int, last: int) -> list[list[bytes]]:
    return [[b"%d" % number] for number in range(first, last + 1)]


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when rank 0 has found a full queue."""
    event = threading.Event()

    def watch(owner: type, name: str) -> None:
        whole = getattr(owner, name)

        def offer(*args: object) -> bool:
            sent = whole(*args)
            if not sent:
                event.set()
            return bool(sent)

        monkeypatch.setattr(owner, name, offer)

    watch(pushpull._Lane, "offer")
    watch(subscribed.SubscribedRelay, "_offer")
    return event


@pytest.mark.parametrize("name", ["subscribed", "pushpull"])
def test_a_burst_to_a_rank_that_does_not_read_leaves_no_gap(
    name: str, tmp_path: Path, blocked: threading.Event
) -> None:
    with place(tmp_path, 2) as here:
        leader, reader = joined(here, name)

        def burst() -> None:
            for raws in messages(1, BURST):
                leader.lead(raws, idle=False)

        ended = within(burst)
        assert blocked.wait(10)
        assert read(reader, BURST) == messages(1, BURST)
        assert ended() is None


def test_one_slow_rank_holds_up_nobody_else_s_frame(tmp_path: Path, blocked: threading.Event) -> None:
    with place(tmp_path, 3) as here:
        leader, slow, quick = joined(here, "pushpull", high_water=10)
        sent = 0

        def burst() -> None:
            nonlocal sent
            for raws in messages(1, BURST):
                sent += 1
                leader.lead(raws, idle=False)

        ended = within(burst)
        # Rank 2 reads along; rank 1 does not, until rank 0 is stuck with a frame for it.
        last = 0
        while not blocked.is_set() or last < sent:
            last += 1
            assert quick.follow(idle=True) == [b"%d" % last]
        assert last == sent < BURST
        rest = within(lambda: read(quick, BURST - last))
        assert read(slow, BURST) == messages(1, BURST)
        assert rest() is None
        assert ended() is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pushpull", "relay: dp0.rank1 did not take frame STEP "),
        ("subscribed", "could not be sent in 0.3. s: the queue of dp0.rank1 or dp0.rank2 is full"),
    ],
)
def test_a_rank_that_never_reads_ends_at_the_step_deadline(name: str, text: str, tmp_path: Path) -> None:
    with place(tmp_path, 3) as here:
        leader, _, quick = joined(here, name, high_water=1, step_limit=0.3)
        large = [bytes(100_000)]

        def burst() -> None:
            while True:
                leader.lead(large, idle=False)

        def follow() -> None:
            while True:
                quick.follow(idle=True)

        ended = within(burst)
        within(follow)
        error = ended()
        assert isinstance(error, DeadlineExceeded)
        assert error.culprit == ("dp0.rank1" if name == "pushpull" else "")
        with pytest.raises(DeadlineExceeded, match=text):
            raise error


@pytest.mark.parametrize("name", SAFE)
def test_a_message_of_16_mib_passes(name: str, tmp_path: Path) -> None:
    with place(tmp_path, 2) as here:
        large = [bytes(16 << 20)]
        if name == "handshake":
            leader, reader = here.relay(name, 0), here.relay(name, 1)
            _skip_the_handshake(leader, reader)
        else:
            leader, reader = joined(here, name)
        leader.lead(large, idle=True)
        assert reader.follow(idle=True) == large


def _skip_the_handshake(leader: object, reader: object) -> None:
    """Hellos until one is heard, then DONE: what the rounds come to."""
    while not reader._heard:  # type: ignore[attr-defined]
        leader._publish(FrameKind.HELLO, None, Deadline.never())  # type: ignore[attr-defined]
        reader._hear_or_say_hello(Deadline.after(1.0))  # type: ignore[attr-defined]
    from engine.relay.frames import Done

    leader._publish(FrameKind.DONE, Done(1, 1), Deadline.never())  # type: ignore[attr-defined]
    leader._number = 1  # type: ignore[attr-defined]
    reader._await_done(Deadline.after(1.0))  # type: ignore[attr-defined]
