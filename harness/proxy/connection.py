"""One proxied connection: two sockets, a flow each way, back pressure, and the end of either side carried across."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Callable
from typing import Literal

from harness.clock import now
from harness.proxy.attempt import gone, name_of
from harness.proxy.flow import Flow
from harness.proxy.ledger import Ledger
from harness.proxy.records import Connected, Leg, Party
from harness.proxy.rules import RuleBook, RuleState
from harness.proxy.words import Words

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE

CHUNK = 64 * 1024
HIGH_WATER = 256 * 1024
"""Bytes waiting to be written beyond which the other side is not read, so that libzmq's own limits are felt."""


class Side:
    """One of the two sockets, and which events it is registered for."""

    __slots__ = ("_mask", "_selector", "ended", "handler", "lost", "name", "sock")

    def __init__(
        self,
        sock: socket.socket,
        name: Literal["connector", "binder"],
        selector: selectors.BaseSelector,
        handler: Callable[[Side, int], None],
    ) -> None:
        self.sock = sock
        self.name: Literal["connector", "binder"] = name
        self.handler = handler
        self.ended = False  # nothing more can be read from it
        self.lost = False  # nothing more can be written to it
        self._selector = selector
        self._mask = 0

    def watch(self, mask: int) -> None:
        """Be called for these events from now on (0: for none)."""
        if mask == self._mask:
            return
        if not mask:
            self._selector.unregister(self.sock)
        elif self._mask:
            self._selector.modify(self.sock, mask, self.on_event)
        else:
            self._selector.register(self.sock, mask, self.on_event)
        self._mask = mask

    def on_event(self, mask: int) -> None:
        """What the selector calls."""
        self.handler(self, mask)

    def close(self) -> None:
        """Forget the socket."""
        self.watch(0)
        self.sock.close()


class Connection:
    """A connection that `connector` made to the proxy (`near`), and the one the proxy made to `binder` (`far`).

    `refuse` is called when a rule wants the leg to take no new connection; `on_closed` once, when both sockets are
    closed.
    """

    def __init__(
        self,
        leg: Leg,
        ordinal: int,
        near: socket.socket,
        far: socket.socket,
        selector: selectors.BaseSelector,
        book: RuleBook,
        ledger: Ledger,
        words: Words,
        refuse: Callable[[RuleState], None],
        on_closed: Callable[[Connection], None],
    ) -> None:
        self.leg = leg
        self._ordinal = ordinal
        self._ledger = ledger
        self._on_closed = on_closed
        self._closed = False
        self._ended_by: Party | None = None
        self._detail = ""
        self._unsent = 0
        self._connector = Side(near, "connector", selector, self._on_event)
        self._binder = Side(far, "binder", selector, self._on_event)
        self.to_binder = Flow(leg, "to_binder", ordinal, book, ledger, words, self.settle, refuse)
        self.to_connector = Flow(leg, "to_connector", ordinal, book, ledger, words, self.settle, refuse)
        self._ways = (
            (self._connector, self.to_binder, self._binder),
            (self._binder, self.to_connector, self._connector),
        )
        ledger.accepted(leg.link, leg.connector, ordinal)
        self.settle()

    def close(self, by: Party) -> None:
        """End both sides now."""
        if self._closed:
            return
        self._closed = True
        for source, flow, _ in self._ways:
            self._unsent += flow.abandon()
            source.close()
        leg = self.leg
        ended_by = self._ended_by or by
        self._ledger.add(
            Connected(now(), leg.link, leg.connector, self._ordinal, "closed", ended_by, self._unsent, self._detail)
        )
        self._on_closed(self)

    def settle(self) -> None:
        """Write what can be written, carry an end across, and watch for what can happen next."""
        if self._closed:
            return
        for source, flow, sink in self._ways:
            self._write(flow, sink)
            if source.ended and not flow.out and not flow.waiting and not sink.lost:
                self._end_writing(sink)
        if all(sink.lost for _, _, sink in self._ways) or any(flow.severed for _, flow, _ in self._ways):
            self.close("proxy")
            return
        for source, flow, sink in self._ways:
            # A side is read while its flow has room, written while its own output waits for it.
            reading = not (source.ended or sink.lost or flow.stalled) and len(flow.out) <= HIGH_WATER
            writing = any(other.out and not other.resting and side is source for _, other, side in self._ways)
            source.watch((READ if reading else 0) | (WRITE if writing else 0))

    def _on_event(self, side: Side, mask: int) -> None:
        if self._closed:
            return
        if mask & READ and not side.ended and self._read(side) and mask == READ:
            return
        self.settle()

    def _read(self, side: Side) -> bool:
        """Take in what has come; whether it has all gone on already and left everything as it was."""
        near = side is self._connector
        flow, sink = (self.to_binder, self._binder) if near else (self.to_connector, self._connector)
        try:
            data = side.sock.recv(CHUNK)
        except BlockingIOError:
            return False
        except OSError as error:
            self._ended(side, flow, name_of(error), True)
            return False
        if not data:
            self._ended(side, flow, "", gone(side.sock))
            return False
        arrived = now()
        messages = flow.receive(data)
        if messages:
            raw = messages[0].raw if len(messages) == 1 else b"".join([message.raw for message in messages])
            self._pass(raw, flow, sink)
            self._ledger.later(flow.note, messages, arrived, len(raw))
        else:
            self._write(flow, sink)
        return not (flow.out or flow.severed or flow.stalled or sink.lost)

    def _ended(self, side: Side, flow: Flow, detail: str, gone: bool) -> None:
        side.ended = True
        if self._ended_by is None:
            self._ended_by, self._detail = side.name, detail
        flow.finish()
        if gone:
            self._lose(side)

    def _pass(self, raw: bytes, flow: Flow, sink: Side) -> None:
        """Write what nothing stands before; what the sink does not take goes where all wait."""
        sent = 0
        if not sink.lost:
            with contextlib.suppress(OSError):  # the next write meets it again
                sent = sink.sock.send(raw)
        if sent < len(raw):
            flow.out += raw[sent:]
            self._write(flow, sink)

    def _write(self, flow: Flow, sink: Side) -> None:
        while flow.out and not sink.lost:
            room = flow.room()
            if not room:
                return
            try:
                sent = sink.sock.send(flow.out if room >= len(flow.out) else flow.out[:room])
            except BlockingIOError:
                return
            except OSError as error:
                if self._ended_by is None:
                    self._ended_by, self._detail = sink.name, name_of(error)
                self._lose(sink)
                return
            flow.sent(sent)

    def _lose(self, sink: Side) -> None:
        """Nothing can be written to this side any more: what was meant for it is lost, as in the kernel."""
        sink.lost = True
        flow = self.to_binder if sink is self._binder else self.to_connector
        self._unsent += flow.abandon()

    def _end_writing(self, sink: Side) -> None:
        sink.lost = True
        try:
            sink.sock.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the peer has gone already
