"""The publisher counts subscriptions, and takes their number for the number of subscribers.

A rank subscribes twice, to everything and to a topic of its own, so the first of two ranks is enough for the count. The
other one is not heard of, and misses GO. A published fix for slow joiners counts on an XPUB socket, and is wrong in the
same place in the other direction: without XPUB_VERBOSE it never sees the second.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from engine.relay.subscribed import SubscribedRelay
from harness.seam import bug_canary

BUG = "H5"

_take_subscription, _absent = SubscribedRelay._take_subscription, SubscribedRelay._absent
_counted: WeakKeyDictionary[SubscribedRelay, int] = WeakKeyDictionary()


@bug_canary.patch(SubscribedRelay, "_take_subscription")
def _count_subscription(self: SubscribedRelay, message: bytes) -> None:
    _take_subscription(self, message)
    _counted[self] = _counted.get(self, 0) + (message[:1] == b"\x01")


@bug_canary.patch(SubscribedRelay, "_absent")
def _absent_by_count(self: SubscribedRelay) -> dict[str, list[int]]:
    bug_canary.reached(BUG)
    absent, others = _absent(self), self._seat.size - 1
    if _counted.get(self, 0) < others:
        return absent
    if absent["subscription"] and not absent["JOIN"]:
        bug_canary.triggered(BUG)
    return {**absent, "subscription": []}
