"""An accepted connection whose binder has not bound yet: it waits, as libzmq's own reconnecting would.

It is not closed at once, although that looks more like a refused connect. A SUB whose connection breaks, even before
the handshake, throws away the subscriptions it had queued and sends them anew only when its own thread next calls
libzmq (`hiccup` of its pipe); a SUB whose connect is refused keeps them. Closing would leave a busy rank unsubscribed
for ever, which does not happen without the proxy. So the connection stays open, the upstream is tried again after
`Leg.retry` seconds, and the join comes as late as it does without a proxy.
"""

from __future__ import annotations

import errno
import select
import selectors
import socket
from collections.abc import Callable

from harness.clock import now
from harness.proxy.address import Address, dial
from harness.proxy.ledger import Ledger
from harness.proxy.records import Connected, Leg, Party


def name_of(error: OSError) -> str:
    """The symbol of an operating-system error, such as ECONNRESET."""
    return errno.errorcode.get(error.errno or 0, str(error))


def gone(sock: socket.socket, also: int = 0) -> bool:
    """Whether the peer has closed the socket altogether; `also` are further poll events that count as that."""
    poll = select.poll()
    poll.register(sock, also)
    return any(events & (select.POLLHUP | select.POLLERR | also) for _, events in poll.poll(0))


class Attempt:
    """Dials `upstream` for the accepted socket `near` until it answers.

    `on_done` gets the attempt and the connected socket, or None when the connector has gone or the run ends. The first
    refusal is recorded, later ones are not.
    """

    def __init__(
        self,
        leg: Leg,
        ordinal: int,
        near: socket.socket,
        upstream: Address,
        selector: selectors.BaseSelector,
        ledger: Ledger,
        on_done: Callable[[Attempt, socket.socket | None], None],
    ) -> None:
        self.leg = leg
        self.ordinal = ordinal
        self.near = near
        self.upstream = upstream
        self.since_ns = now()
        self.retry_at_ns: int | None = None  # None while a connect is under way
        self._selector = selector
        self._ledger = ledger
        self._on_done = on_done
        self._far: socket.socket | None = None
        self._refused = False

    def dial(self) -> None:
        """Try now. A connector that has closed even one half while it waited cannot finish a handshake: forget it."""
        self.retry_at_ns = None
        if self._refused and gone(self.near, select.POLLRDHUP):
            self.close("connector")
            return
        try:
            far, connected = dial(self.upstream)
        except OSError as error:
            self._wait(name_of(error))
            return
        if connected:
            self._on_done(self, far)
        else:
            self._far = far
            self._selector.register(far, selectors.EVENT_WRITE, self._on_event)

    def close(self, by: Party) -> None:
        """Give up."""
        if self._far is not None:
            self._drop_far(self._far)
        self.near.close()
        self._ledger.add(Connected(now(), self.leg.link, self.leg.connector, self.ordinal, "closed", by))
        self._on_done(self, None)

    def _on_event(self, mask: int) -> None:
        far = self._far
        if far is None:
            return
        code = far.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._drop_far(far)
            self._wait(errno.errorcode.get(code, str(code)))
        else:
            self._selector.unregister(far)
            self._far = None
            self._on_done(self, far)

    def _drop_far(self, far: socket.socket) -> None:
        self._selector.unregister(far)
        far.close()
        self._far = None

    def _wait(self, why: str) -> None:
        self.retry_at_ns = now() + int(self.leg.retry * 1e9)
        if not self._refused:
            self._refused = True
            self._ledger.refused(self.leg.link, self.leg.connector, self.ordinal, why)
