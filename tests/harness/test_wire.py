"""The zygote's sockets: packets stay whole, descriptors travel, and a question to an empty socket never blocks."""

from __future__ import annotations

import os

import pytest

from harness.zygote import wire


def test_a_record_and_its_descriptors_arrive_together() -> None:
    ours, theirs = wire.pair()
    reading, writing = os.pipe()
    with ours, theirs:
        wire.send(ours, wire.Start("dp0.rank1", "m:f", ["x", 3, b"y"]), (writing,))
        wire.send(ours, wire.Ping())
        message, fds = wire.receive(theirs)
        assert message == wire.Start("dp0.rank1", "m:f", ["x", 3, b"y"])
        assert wire.receive(theirs) == (wire.Ping(), [])
    assert [os.get_inheritable(fd) for fd in fds] == [False]
    os.close(writing)
    os.write(fds[0], b"through")
    os.close(fds[0])
    assert os.read(reading, 100) == b"through"
    os.close(reading)


def test_an_empty_socket_does_not_block_the_one_who_will_not_wait() -> None:
    ours, theirs = wire.pair()
    with ours, theirs:
        with pytest.raises(BlockingIOError):
            wire.receive(theirs, wait=False)
        wire.send(ours, wire.Ping())
        assert wire.receive(theirs, wait=False) == (wire.Ping(), [])


def test_a_peer_that_has_gone_is_none() -> None:
    ours, theirs = wire.pair()
    with theirs:
        wire.send(ours, wire.Ping())
        ours.close()
        assert wire.receive(theirs) == (wire.Ping(), [])
        assert wire.receive(theirs, wait=False) == (None, [])
