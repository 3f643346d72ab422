"""The parent's side of the proxy process: start it, give it runs, ask it, stop it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from harness.proxy.control import (
    Add,
    Begin,
    Begun,
    Done,
    End,
    Failed,
    GetLedger,
    GetStatus,
    Heal,
    Release,
    Reply,
    Request,
    Splitter,
    Withdraw,
    pack,
)
from harness.proxy.records import FrameRule, LedgerSlice, Leg, RunEnd, Status

_ROOT = Path(__file__).resolve().parents[2]

R = TypeVar("R")


class ProxyError(Exception):
    """The proxy refused a request, did not answer in time, or has gone; the message says which and why."""


class Proxy:
    """One proxy process and the way to talk to it. One thread may use it at a time.

    `timeout` is in seconds, for each answer. The process ends with the parent, whatever ends that one; a `with` block
    or `stop` ends it sooner.
    """

    def __init__(self, timeout: float = 60.0) -> None:
        self._timeout = timeout
        self._splitter = Splitter()
        self._decoder = msgspec.msgpack.Decoder(Reply)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._signals, hears = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with theirs, hears:
            try:
                self._process = _launch(theirs, hears)
            except BaseException:
                self._control.close()
                self._signals.close()
                raise

    @property
    def pid(self) -> int:
        """Process id of the proxy."""
        return self._process.pid

    @property
    def signal_fd(self) -> int:
        """Where a child that inherits it writes a rule's index (one octet, or four little-endian) to end its holds.

        A datagram socket, not inheritable by exec unless the caller makes it so; a write to it needs no answer.
        """
        return self._signals.fileno()

    def begin(
        self,
        legs: Sequence[Leg],
        rules: Sequence[FrameRule] = (),
        classify: str | None = None,
        foreign: str | None = None,
    ) -> tuple[str, ...]:
        """Start a run and return the addresses listened on, in the order of `legs`.

        `classify` and `foreign` are `module:function`, imported in the proxy: `(link, direction, frames) -> Kind`, and
        `(link, frames) -> frames`, which moves a message to another run. Raises `ProxyError` for a leg, rule or
        function that cannot be had, and while a run is open.
        """
        return tuple(self._ask(Begin(list(legs), list(rules), classify, foreign), Begun).listens)

    def status(self) -> Status:
        """The state after all that could be moved has been; quiet and empty while no run is open."""
        return self._ask(GetStatus(), Status)

    def ledger(self, since: int = 0) -> LedgerSlice:
        """Records from position `since` on."""
        return self._ask(GetLedger(since), LedgerSlice)

    def add(self, rule: FrameRule) -> None:
        """Put one more rule in force while the run goes on; it counts frames from now on.

        What was sent before comes before it: whatever can be read by now has passed when this returns. Raises
        `ProxyError` for a rule that cannot be had.
        """
        self._ask(Add(rule), Done)

    def withdraw(self, index: int) -> None:
        """Let a rule act no more, and let go what it holds; its counts stay. Raises `ProxyError` if there is none."""
        self._ask(Withdraw(index), Done)

    def release(self, index: int) -> None:
        """Let go what rule `index` holds, now and later. Raises `ProxyError` when there is no such rule."""
        self._ask(Release(index), Done)

    def heal(self) -> None:
        """Let go every hold; no rule that there is acts from now on."""
        self._ask(Heal(), Done)

    def signal(self, index: int) -> None:
        """Write `index` to the signal socket, as a child process would."""
        os.write(self.signal_fd, index.to_bytes(4, "little"))

    def end(self) -> RunEnd:
        """End the run, close all its connections and listeners, and return its whole ledger."""
        return self._ask(End(), RunEnd)

    def stop(self, timeout: float = 5.0) -> int:
        """End the process and return its exit code; it is killed if it takes more than `timeout` seconds."""
        self._control.close()
        self._signals.close()
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _ask(self, request: Request, expected: type[R]) -> R:
        name = type(request).__name__
        try:
            self._control.settimeout(self._timeout)
            self._control.sendall(pack(request))
            while (body := self._splitter.next()) is None:
                data = self._control.recv(1 << 18)
                if not data:
                    raise ProxyError(f"proxy process {self.pid} ended before it answered {name}")
                self._splitter.feed(data)
        except TimeoutError:
            # A late answer would be taken for that of the next request.
            self.stop(0)
            raise ProxyError(
                f"proxy process {self.pid} did not answer {name} in {self._timeout} s; it was stopped"
            ) from None
        except OSError as error:
            raise ProxyError(f"proxy process {self.pid} cannot be asked {name}: {error.strerror}") from error
        reply = self._decoder.decode(body)
        if isinstance(reply, Failed):
            raise ProxyError(reply.error)
        if not isinstance(reply, expected):
            raise ProxyError(f"proxy process {self.pid} answered {name} with {type(reply).__name__}")
        return reply


def _launch(control: socket.socket, signals: socket.socket) -> subprocess.Popen[bytes]:
    descriptors = (control.fileno(), signals.fileno())
    # The proxy imports what the parent can import (the classify function), wherever either was started.
    found = [str(_ROOT), *(os.path.abspath(entry) for entry in sys.path)]
    optimise = ["-" + "O" * sys.flags.optimize] if sys.flags.optimize else []
    return subprocess.Popen(
        [sys.executable, "-P", *optimise, "-m", "harness.proxy", *map(str, descriptors)],
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(found))},
    )
