"""What the proxy is told and what it tells: legs, rules, ledger records, status. All times are CLOCK_MONOTONIC."""

from __future__ import annotations

from typing import Literal

import msgspec

Direction = Literal["to_connector", "to_binder"]
Action = Literal[
    "drop",
    "hold",
    "lag",
    "reorder",
    "stall",
    "slow",
    "refuse",
    "reset",
    "corrupt",
    "truncate",
    "duplicate",
    "foreign",
]
Fate = Literal["passed", "dropped", "held", "released", "discarded", "corrupted", "truncated", "injected"]
Ending = Literal["signal", "time", "command", "heal", "withdraw"]
Party = Literal["connector", "binder", "proxy"]

ANY_MESSAGE = "*"
UNKNOWN = "?"


class Leg(msgspec.Struct, frozen=True):
    """One proxied path: role `connector` connects to `listen`; for each connection the proxy dials `upstream`.

    `upstream` is where role `binder` bound. Addresses are `/path`, `ipc:///path`, `ipc://@abstract` or
    `tcp://127.0.0.1:PORT` (port 0 in `listen` lets the kernel choose). While the binder has not bound, the upstream is
    tried every `retry` seconds; the default is libzmq's default RECONNECT_IVL, the least it waits itself.
    """

    link: str
    connector: str
    binder: str
    listen: str
    upstream: str
    retry: float = 0.1


class FrameRule(msgspec.Struct, frozen=True):
    """Acts on the `nth` to `nth + count - 1` frame of a kind on the legs of `link` whose connector is `victim`.

    Frames are counted by each rule for itself, per (link, connector, direction), from the moment it is given, over all
    connections, or on the `connection`-th alone. With `match` only those count of which a part contains these bytes.
    Kind `*` is every message and no command.

    What ends: `hold` keeps the frame and all behind it in that direction of that connection until `after` seconds have
    passed (None: never by time), the rule is signalled (`until_signal`), released, withdrawn or healed; `stall` does
    the same and reads no further from the sender. `refuse` ends the frame's connection and listens no more, so that
    new connections of `victim` find nobody, as long as a hold would last; with an empty kind from the moment it is
    given. `lag` lets each frame arrive `after` seconds later, `reorder` behind the next frame of its direction and
    connection, `slow` carries `rate` bytes a second from the frame on.

    What stays: `drop`; `reset` loses the frame and ends its connection, what came before it has gone on. `corrupt`
    flips every bit of the byte at `offset` (None: the middle) of a message's last part, `truncate` leaves `keep` bytes
    of it. `duplicate` sends a message twice. `foreign` sends a message of one part `data` before it (None: what the
    run's foreign function makes of it). These four meet commands, but do nothing to them.
    """

    index: int
    action: Action
    link: str
    victim: str
    kind: str
    nth: int = 1
    count: int = 1
    direction: Literal["either", "to_connector", "to_binder"] = "either"
    connection: int | None = None
    match: bytes | None = None
    after: float | None = None
    until_signal: bool = False
    offset: int | None = None
    keep: int = 0
    rate: int | None = None
    data: bytes | None = None

    def fault(self) -> str | None:
        """What is wrong with the settings, in one sentence, or None."""
        for name, low in (("index", 0), ("nth", 1), ("count", 1), ("connection", 1), ("keep", 0), ("rate", 1)):
            value = getattr(self, name)
            if value is not None and value < low:
                return f"rule {self.index}: {name} must be {low} or more, not {value}"
        if not self.kind and self.action != "refuse":
            return f"rule {self.index}: kind is empty; give a frame kind, or * for every message"
        if self.after is not None and not 0 <= self.after < 1e9:
            return f"rule {self.index}: after must be seconds from 0 to 1e9, not {self.after}"
        if self.match == b"":
            return f"rule {self.index}: match is empty; give the bytes to look for, or None"
        needed = {"lag": "after", "slow": "rate"}.get(self.action)
        if needed is not None and getattr(self, needed) is None:
            return f"rule {self.index}: a {self.action} needs {needed}"
        return None


class Kind(msgspec.Struct, frozen=True, gc=False):
    """What a classify function says of a message: its kind, its number on the link, epoch, and request ids."""

    kind: str
    number: int | None = None
    epoch: int | None = None
    ids: tuple[str, ...] = ()


class Seen(msgspec.Struct, frozen=True, gc=False, tag="seen"):
    """One message or command and its fate. `size` is in bytes on the wire; `rule` the rule that touched it.

    `nth` counts frames of this kind per (link, connector, direction) from the begin of the run. A frame behind a held
    one is `held` by the same rule. Bytes that could not be parsed are of kind `?`, one record for each piece. `passed`
    with a rule: it was caught by a hold whose release had come before it, or something was injected beside it. What a
    rule `injected` is not counted: its `nth` is 0.
    """

    t_ns: int
    link: str
    connector: str
    direction: Direction
    connection: int
    kind: str
    number: int | None
    nth: int
    size: int
    fate: Fate
    rule: int | None


class Connected(msgspec.Struct, frozen=True, gc=False, tag="connection"):
    """A connection made on both sides (accepted), refused by the upstream, or closed.

    One that is refused, because the binder has not bound, waits for it and is accepted later. `connection` counts from
    1 on each leg. `by` is the side that ended it; `unsent` are bytes that were read and not held but could no longer be
    written, because their receiver had gone or the run ended.
    """

    t_ns: int
    link: str
    connector: str
    connection: int
    event: Literal["accepted", "refused", "closed"]
    by: Party | None = None
    unsent: int = 0
    detail: str = ""


class Released(msgspec.Struct, frozen=True, gc=False, tag="released"):
    """A rule's release instant came; `holds` frames were let go by it (0: it came before the frame)."""

    t_ns: int
    rule: int
    by: Ending
    holds: int


class Trouble(msgspec.Struct, frozen=True, gc=False, tag="trouble"):
    """Something the proxy could not read: bytes that are not ZMTP, a classify function that failed, a bad signal."""

    t_ns: int
    link: str
    connector: str
    direction: Direction | None
    connection: int
    what: str


Record = Seen | Connected | Released | Trouble


class RuleCount(msgspec.Struct, frozen=True):
    """How often a rule was armed, reached by a matching frame, and fired on one."""

    index: int
    armed: int
    reached: int
    fired: int


class Held(msgspec.Struct, frozen=True):
    """One hold: the caught frame and those behind it (`frames`), and what can end it.

    A leg whose connections are refused is held too, with no frame.
    """

    rule: int
    frames: int
    release_at_ns: int | None
    waits_signal: bool


class Pending(msgspec.Struct, frozen=True):
    """Bytes read from one side and not yet written to the other, held bytes not counted."""

    link: str
    connector: str
    direction: Direction
    bytes: int


class Parked(msgspec.Struct, frozen=True):
    """A connector that waits for a binder which has not bound, since when, and when the proxy tries again."""

    link: str
    connector: str
    since_ns: int
    retry_at_ns: int


class Status(msgspec.Struct, frozen=True, tag="status"):
    """The proxy at one instant, after it has moved all it could move.

    `quiet`: nothing was readable, nothing is unwritten but held frames, no connection is being made, no timer is due.
    Connectors that wait for a binder are quiet while nobody listens at the upstream. `next_timer_ns` is of holds only.
    `records` is the length of the ledger: equal in two looks means that no frame came and none left between them.
    """

    quiet: bool
    pending_bytes: int
    pending: list[Pending]
    held: list[Held]
    next_timer_ns: int | None
    rules: list[RuleCount]
    records: int
    parked: list[Parked]


class LedgerSlice(msgspec.Struct, frozen=True, tag="ledger"):
    """Records from a position on; ask again from `next`."""

    records: list[Record]
    next: int


class RunEnd(msgspec.Struct, frozen=True, tag="end"):
    """The whole ledger of a run and the counts of its rules."""

    records: list[Record]
    rules: list[RuleCount]
