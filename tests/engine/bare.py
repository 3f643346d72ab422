"""An engine whose launcher and clients are the test itself: forked ranks, and the other end of every link by hand."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import zmq

from engine.clock import Deadline
from engine.codec import packed, unsealed
from engine.config import Launch
from engine.endpoints import Endpoints
from engine.launch import Rank, Ranks
from engine.messages import (
    CLIENT_ROLE,
    EngineReady,
    FinishReason,
    Hello,
    Init,
    Notice,
    RequestOutput,
    Startup,
    UtilityOutput,
)
from engine.pulse import PulseTable
from tests.engine.forks import ForkFactory, config_for
from tests.engine.peers import PATIENCE, Peer

EPOCH = 0x1234_5678_9ABC_DEF0

END = 10.0
"""Seconds for all ranks to be gone."""


class Bare:
    """Started, and not yet answered. The ranks are killed at the end."""

    def __init__(self, folder: Path, factory: ForkFactory, size: int = 1, clients: int = 1, **changes: Any) -> None:
        config = config_for(size, client_count=clients, **changes)
        startup_at = Deadline.after(config.timeouts.startup).at or 0.0
        self.launch = Launch(config, EPOCH, str(folder), False, startup_at)
        self.factory = factory
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        address = Endpoints(str(folder), False).address
        self.startup = self.context.socket(zmq.ROUTER)
        self.startup.bind(address("startup"))
        self.peers = [Peer(self.context, index, address) for index in range(clients)]
        self.pulses = PulseTable(size, clients)
        self.ranks = Ranks()
        self._claim = os.open(os.devnull, os.O_RDONLY)
        self._identity = b""

    @property
    def first(self) -> Rank:
        """Rank 0."""
        return self.ranks.all[0]

    def start(self) -> None:
        self.ranks.start(self.launch, self.factory, [self._claim, self.pulses.fileno()])

    # ---- startup ----

    def heard(self) -> Hello | Init | EngineReady:
        """What rank 0 says next on `startup`."""
        assert self.startup.poll(PATIENCE), "rank 0 says nothing"
        self._identity, body = self.startup.recv_multipart()
        record: Startup = msgspec.msgpack.decode(unsealed(body), type=Startup)
        return record

    def init(self, epoch: int = EPOCH) -> Init:
        """The INIT that says where the clients are."""
        inputs, outputs = zip(*(peer.addresses for peer in self.peers), strict=True)
        return Init(epoch, list(inputs), list(outputs))

    def answer(self, *frames: bytes) -> None:
        """Say something on `startup`: the INIT that it should be, unless other frames are given."""
        self.startup.send_multipart([self._identity, *(frames or (packed(self.init()),))])

    def until_ready(self) -> None:
        """The whole start, as it should be."""
        self.start()
        assert isinstance(self.heard(), Hello)
        self.answer()
        assert self.heard() == EngineReady(EPOCH, 0)
        for peer in self.peers:
            peer.welcomed()
        self.until(lambda: all(rank.ready is not None for rank in self.ranks.all))

    # ---- service and end ----

    def until(self, condition: Callable[[], bool]) -> None:
        """Listen to the ranks until it is so."""
        deadline = Deadline.after(END)
        while not condition():
            assert self.ranks.wait(deadline), "it did not come to that in time"

    def stop(self, limit: float = 5.0, *, drain: bool = False) -> None:
        """Tell rank 0 to leave."""
        self.first.notify(Notice("stop", limit=limit, drain=drain))

    def fail(self, cause: str) -> None:
        self.first.notify(Notice("fail", CLIENT_ROLE, cause))

    def gone(self, client_index: int) -> None:
        """Tell rank 0 that a client has left."""
        self.first.notify(Notice("gone", client=client_index))

    def orphan(self) -> None:
        """Rank 0's launcher is gone, as far as that rank can see."""
        os.dup2(self._claim, self.first.lifeline)

    def unread(self) -> int:
        """Bytes on rank 0's lifeline that it has not read."""
        size = array.array("i", [0])
        fcntl.ioctl(self.first.lifeline, termios.FIONREAD, size)
        return size[0]

    def await_that(self, condition: Callable[[], bool]) -> None:
        """Wait for what nobody tells, by looking."""
        deadline = Deadline.after(END)
        while not condition():
            assert not deadline.expired(), "it did not come to that in time"
            time.sleep(0.002)

    def ended(self) -> list[int | None]:
        """The exit codes of all ranks, once they have left by themselves."""
        assert self.ranks.wait_for_end(Deadline.after(END)), f"still running: {self.factory.living()}"
        return [rank.exitcode for rank in self.ranks.all]

    def close(self) -> None:
        self.factory.kill()
        self.ranks.wait_for_end(Deadline.after(END))
        self.ranks.close()
        self.context.destroy(linger=0)
        self.pulses.close()
        os.close(self._claim)


@contextlib.contextmanager
def bare(folder: Path, factory: ForkFactory, size: int = 1, clients: int = 1, **changes: Any) -> Iterator[Bare]:
    """An engine of that size for so many clients, not started; nothing of it is left at the end."""
    made = Bare(folder, factory, size, clients, **changes)
    try:
        yield made
    finally:
        made.close()


def tokens_of(peer: Peer, *request_ids: str) -> dict[str, tuple[list[int], FinishReason]]:
    """Read until all these requests have finished; the tokens of each, and why it finished."""
    tokens: dict[str, list[int]] = {request_id: [] for request_id in request_ids}
    ends: dict[str, FinishReason] = {}
    while len(ends) < len(request_ids):
        for output in peer.read().outputs:
            tokens[output.request_id] += output.token_ids
            if output.finish_reason is not None:
                ends[output.request_id] = output.finish_reason
    return {request_id: (tokens[request_id], ends[request_id]) for request_id in request_ids}


def finals(peer: Peer, count: int) -> list[RequestOutput | UtilityOutput]:
    """The next `count` ends of requests and replies, tokens left out."""
    found: list[RequestOutput | UtilityOutput] = []
    while len(found) < count:
        record = peer.read()
        found += [output for output in record.outputs if output.finish_reason is not None]
        found += [record.utility] if record.utility is not None else []
    return found
