"""A ZMTP-aware proxy process: it carries links between roles, and does by rule what a bad link does to frames.

`Proxy` (in `handle`) starts and drives it from the parent; the records both sides speak are in `records`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.proxy.records import (
    Connected,
    FrameRule,
    Held,
    Kind,
    LedgerSlice,
    Leg,
    Parked,
    Pending,
    Record,
    Released,
    RuleCount,
    RunEnd,
    Seen,
    Status,
    Trouble,
)

if TYPE_CHECKING:
    from harness.proxy.handle import Proxy, ProxyError

__all__ = [
    "Connected",
    "FrameRule",
    "Held",
    "Kind",
    "LedgerSlice",
    "Leg",
    "Parked",
    "Pending",
    "Proxy",
    "ProxyError",
    "Record",
    "Released",
    "RuleCount",
    "RunEnd",
    "Seen",
    "Status",
    "Trouble",
]


def __getattr__(name: str) -> object:
    # The proxy process imports this package too and has no use for the parent's side (subprocess).
    if name in ("Proxy", "ProxyError"):
        from harness.proxy import handle

        return getattr(handle, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
