"""The proxy process: one selectors loop over the control socket, the signal socket and the run's connections."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
from collections.abc import Callable

import msgspec

from harness.clock import now
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
from harness.proxy.records import LedgerSlice, Status
from harness.proxy.run import Run
from harness.proxy.words import Words, load_classify, load_foreign

_DRAIN_NS = 50_000_000  # traffic that has not paused for this long is not quiet, and the answer cannot wait

_IDLE = Status(quiet=True, pending_bytes=0, pending=[], held=[], next_timer_ns=None, rules=[], records=0, parked=[])


class Server:
    """Serves one parent over `control` until it closes its end, ends, or asks by SIGTERM; then nothing is left.

    `signals` is a datagram socket: a message of one octet, or of four in little-endian order, is the index of a rule
    whose holds may go.
    """

    def __init__(self, control: socket.socket, signals: socket.socket | None = None) -> None:
        self._control = control
        self._signals = signals
        self._selector = selectors.DefaultSelector()
        self._splitter = Splitter()
        self._replies = bytearray()
        self._decoder = msgspec.msgpack.Decoder(Request)
        self._run: Run | None = None
        self._serving = True
        control.setblocking(False)
        self._selector.register(control, selectors.EVENT_READ, self._on_control)
        if signals is not None:
            signals.setblocking(False)
            self._selector.register(signals, selectors.EVENT_READ, self._on_signal)

    def serve(self) -> None:
        """Run until the parent has gone."""
        parent = self._watch_parent()
        try:
            while self._serving:
                self._turn()
        finally:
            if self._run is not None:
                self._run.close()
            self._selector.close()
            if parent is not None:
                os.close(parent)

    def _watch_parent(self) -> int | None:
        # A child forked by the parent may hold a copy of its control socket, so end of file alone is not enough.
        try:
            parent = os.pidfd_open(os.getppid())
        except OSError:
            return None
        self._selector.register(parent, selectors.EVENT_READ, self._on_orphaned)
        return parent

    def _turn(self) -> None:
        """One round: the next events, or the next timer."""
        due = None if self._run is None else self._run.next_timer_ns()
        for key, mask in self._selector.select(None if due is None else max(0.0, (due - now()) / 1e9)):
            # A handler earlier in this round may have closed the socket: its own guard sees to that.
            callback: Callable[[int], None] = key.data
            callback(mask)
        if due is not None and self._run is not None:
            self._run.fire_timers(now())

    def _move(self) -> bool:
        """What can be done now but for the control socket; whether there was anything."""
        happened = False
        for key, mask in self._selector.select(0):
            if key.fileobj is not self._control:
                key.data(mask)
                happened = True
        return (self._run is not None and self._run.fire_timers(now())) or happened

    def _on_orphaned(self, mask: int) -> None:
        self._serving = False

    def _on_signal(self, mask: int) -> None:
        for index in self._read_signals():
            if self._run is not None:
                self._run.signal(index)

    def _read_signals(self) -> list[int]:
        found: list[int] = []
        while self._signals is not None:
            try:
                data = self._signals.recv(4096)
            except BlockingIOError:
                break
            except OSError:  # the last writer's end was reset
                break
            if len(data) == 1:
                found.append(data[0])
            elif len(data) == 4:
                found.append(int.from_bytes(data, "little"))
            elif self._run is not None:
                self._run.ledger.trouble(f"signal of {len(data)} octets: expected one octet, or four little-endian")
        return found

    def _on_control(self, mask: int) -> None:
        if mask & selectors.EVENT_READ:
            try:
                data = self._control.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._serving = False
                return
            self._splitter.feed(data)
            while (body := self._splitter.next()) is not None:
                self._replies += pack(self._answer(body))
        self._send_replies()

    def _send_replies(self) -> None:
        try:
            while self._replies:
                sent = self._control.send(self._replies)
                del self._replies[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._serving = False
            return
        writing = selectors.EVENT_WRITE if self._replies else 0
        self._selector.modify(self._control, selectors.EVENT_READ | writing, self._on_control)

    def _answer(self, body: bytes) -> Reply:
        try:
            return self._carry_out(self._decoder.decode(body))
        except (ValueError, msgspec.ValidationError, msgspec.DecodeError) as error:
            return Failed(str(error))

    def _carry_out(self, request: Request) -> Reply:
        if isinstance(request, Begin):
            return self._begin(request)
        if isinstance(request, GetStatus):
            drained = self._drain()
            return _IDLE if self._run is None else self._run.status(drained)
        if self._run is None:
            raise ValueError("no run is open: begin one first")
        if isinstance(request, GetLedger):
            records = self._run.ledger.records
            return LedgerSlice(records[max(request.since, 0) :], len(records))
        if isinstance(request, Add):
            self._drain()  # what was sent before meets the rules that there were
            self._run.add(request.rule)
        elif isinstance(request, Withdraw):
            self._run.withdraw(request.index)
        elif isinstance(request, Release):
            self._run.release(request.index)
        elif isinstance(request, Heal):
            self._run.heal()
        elif isinstance(request, End):
            run, self._run = self._run, None
            run.close()
            return run.result()
        return Done()

    def _begin(self, request: Begin) -> Begun:
        if self._run is not None:
            raise ValueError("a run is open: end it before the next begins")
        words = Words(load_classify(request.classify), load_foreign(request.foreign))
        self._read_signals()  # late ones of the run before
        self._run = Run(request.legs, request.rules, words, self._selector)
        return Begun(self._run.listens)

    def _drain(self) -> bool:
        """Move all that can be moved; whether there came an end to it."""
        give_up = now() + _DRAIN_NS
        while self._move():
            if now() > give_up:
                return False
        return True


def main(arguments: list[str]) -> int:
    """`python -m harness.proxy CONTROL_FD [SIGNAL_FD]`; returns the exit code."""
    if len(arguments) not in (1, 2) or not all(argument.isdecimal() for argument in arguments):
        print("usage: python -m harness.proxy CONTROL_FD [SIGNAL_FD]; both are inherited sockets", flush=True)
        return 2
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what ends
    signal.signal(signal.SIGTERM, _terminate)
    with contextlib.ExitStack() as stack:
        try:
            sockets = [stack.enter_context(socket.socket(fileno=int(argument))) for argument in arguments]
        except OSError as error:
            print(f"bad descriptor in {arguments}: {error.strerror}", flush=True)
            return 2
        Server(*sockets).serve()
    return 0


def _terminate(number: int, frame: object) -> None:
    raise SystemExit(128 + number)
