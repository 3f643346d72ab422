"""The link `control`: how the other ranks speak back to rank 0.

Rank 0 binds a PULL, every other rank connects a PUSH. Three records, in the envelope of :mod:`engine.relay.frames`:
JOIN, when a rank is loaded and its relay is connected; RESULT, what its part of a call that runs on every rank came to;
FAIL, when a rank leaves because of something that it found out. Every sender counts its records from 1.

FAIL is one half of the way a failure takes. The other half is the report pipe to the launcher, which a failing rank
writes first: the launcher names the cause to the caller and tells every rank over its lifeline; rank 0, told here,
passes the FAIL on over the relay. Either half alone is enough, so a launcher that is slow or stopped does not keep the
ranks in their waits.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable
from importlib import metadata
from typing import NoReturn

import zmq

from engine.config import Launch
from engine.errors import PeerFailed, RelayError
from engine.relay import frames
from engine.relay.frames import Fail, Frame, FrameKind, Join, Place, Result
from engine.sockets import readable

FAIL_LINGER = 100
"""Milliseconds for a FAIL record to leave the process."""

QUEUE = 16
"""Records that one rank may have on its way. A RESULT waits for room; besides those it never sends more than two."""

Record = Join | Fail | Result

_RECORDS: dict[FrameKind, type[Join] | type[Fail] | type[Result]] = {
    FrameKind.JOIN: Join,
    FrameKind.FAIL: Fail,
    FrameKind.RESULT: Result,
}


@functools.cache
def engine_version() -> str:
    """The version of the installed distribution, empty if the engine runs from a bare source tree."""
    try:
        return metadata.version("nowedge")
    except metadata.PackageNotFoundError:
        return ""


def config_digest(launch: Launch) -> str:
    """16 hexadecimal digits that are the same exactly if two ranks run the same engine with the same configuration."""
    return hashlib.blake2b(launch.encode() + engine_version().encode(), digest_size=8).hexdigest()


class Control:
    """One rank's end of the link. `place` tells where this rank is among its collectives."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        rank: int,
        roles: list[str],
        epoch: int,
        digest: str,
        place: Callable[[], Place],
    ) -> None:
        self._rank = rank
        self._roles = roles
        self._epoch = epoch
        self._digest = digest
        self._place = place
        self._numbers = [0] * len(roles)
        self._joined: dict[int, Join] = {}
        self._calls = [0] * len(roles)
        self._results: dict[int, dict[int, Result]] = {}
        self._linger = 0
        self._socket = context.socket(zmq.PULL if rank == 0 else zmq.PUSH)
        self._socket.set_hwm(QUEUE * len(roles))

    @property
    def socket(self) -> zmq.Socket[bytes]:
        return self._socket

    def open(self, address: str) -> None:
        """Rank 0: bind."""
        self._socket.bind(address)

    def connect(self, address: str) -> None:
        """Rank k: connect."""
        self._socket.connect(address)

    def close(self) -> None:
        """Close the socket; a FAIL still goes out, within a bound."""
        self._socket.close(linger=self._linger)

    # ---- rank k ----

    def join(self) -> None:
        """Tell rank 0 that this rank is ready to hear it."""
        self._send(FrameKind.JOIN, Join(self._rank, os.getpid(), engine_version(), self._digest))

    def fail(self, what: Fail) -> None:
        """Tell rank 0 why this rank leaves; harmless if rank 0 is gone."""
        self._linger = FAIL_LINGER
        self._send(FrameKind.FAIL, what)

    def give(self, result: Result) -> bool:
        """Tell rank 0 what a call came to; False if there is no room for that now."""
        return self._send(FrameKind.RESULT, result)

    def _send(self, kind: FrameKind, record: Record) -> bool:
        try:
            self._socket.send(frames.encode(kind, self._epoch, self._numbers[self._rank] + 1, record), zmq.DONTWAIT)
        except zmq.Again:
            return False  # a rank 0 that does not read a JOIN or FAIL reads of the death from the launcher
        self._numbers[self._rank] += 1
        return True

    # ---- rank 0 ----

    def missing(self) -> list[int]:
        """The ranks whose JOIN has not come."""
        return [rank for rank in range(1, len(self._roles)) if rank not in self._joined]

    def without_result(self, call: int) -> list[int]:
        """The ranks whose RESULT of that call has not come."""
        come = self._results.get(call, {})
        return [rank for rank in range(1, len(self._roles)) if rank not in come]

    def take_results(self, call: int) -> list[Result]:
        """The results of that call, all of which have come, by rank from 1 on."""
        come = self._results.pop(call, {})
        return [come[rank] for rank in range(1, len(self._roles))]

    def listen(self) -> None:
        """Take in what has come.

        Raises what a FAIL says; :class:`PeerFailed` for a rank that joins as it must not; :class:`RelayError` for a
        record that is damaged, out of turn, or not of this run.
        """
        while self._rank == 0 and readable(self._socket):
            raw = self._socket.recv(zmq.DONTWAIT)
            try:
                frame = frames.decode(raw)
                record: Record = frames.payload(frame, _RECORDS.get(frame.kind, Fail))
            except RelayError as error:
                raise RelayError(f"control: {error}") from None
            self._check(frame, record)
            if isinstance(record, Join):
                self._take(record)
            elif isinstance(record, Result):
                self._keep(record)
            else:
                self._raise(record)

    def _check(self, frame: Frame, record: Record) -> None:
        said = f"control record {frame} of rank {record.rank}"
        if frame.epoch != self._epoch:
            raise RelayError(f"{said} is of foreign epoch {frame.epoch:#x}, expected {self._epoch:#x}")
        if not 1 <= record.rank < len(self._roles):
            raise RelayError(f"{said}, expected a rank from 1 to {len(self._roles) - 1}")
        if frame.kind not in _RECORDS:
            raise RelayError(f"{said}, expected JOIN, FAIL or RESULT")
        if isinstance(record, Join) and record.rank in self._joined:
            role, first = self._roles[record.rank], self._joined[record.rank]
            raise PeerFailed(role, f"{role} joined twice, as process {first.pid} and as process {record.pid}")
        expected = self._numbers[record.rank] + 1
        # A sender whose last send failed cannot know whether that record went: its FAIL may repeat the number.
        if frame.number > expected or (frame.number < expected and frame.kind is not FrameKind.FAIL):
            raise RelayError(f"{said}, expected its record {expected}")
        self._numbers[record.rank] = frame.number

    def _take(self, join: Join) -> None:
        role = self._roles[join.rank]
        if (join.version, join.digest) != (engine_version(), self._digest):
            raise PeerFailed(
                role,
                f"{role} joined with configuration digest {join.digest} (engine {join.version or 'unknown'}), "
                f"{self._roles[0]} has {self._digest} (engine {engine_version() or 'unknown'})",
            )
        self._joined[join.rank] = join

    def _keep(self, result: Result) -> None:
        """Every rank takes part in every call, so its results are those of one call after another."""
        expected = self._calls[result.rank] + 1
        if result.call != expected:
            role = self._roles[result.rank]
            raise RelayError(f"control: {role} gives the result of collective call {result.call}, expected {expected}")
        self._calls[result.rank] = expected
        self._results.setdefault(result.call, {})[result.rank] = result

    def _raise(self, fail: Fail) -> NoReturn:
        raise fail.heard_by(self._roles[0], self._place())
