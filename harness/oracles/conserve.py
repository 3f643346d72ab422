"""CONSERVE: what was sent on a link is received once and by whom it was for (I5, I6, I53; H2 of the relay's clauses).

Nothing is received twice, nothing that nobody sent, and nothing is left out: of a link that keeps what it is given, not
even before an error; of one that may lose, not where all left in order, since whoever promises to notice a loss would
not have left so. Judged where no fault touched the link and both its ends lived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from harness.faults.restart import AGAIN
from harness.history import Event, History
from harness.oracles import outcome
from harness.targets import Target
from harness.verdict import Finding

_UNSURE = ("hello", "fail", "dead", "stop", "?", "subscribe", "unsubscribe")
"""Kinds that need not arrive: said again and again until somebody hears, or last words to who may be gone by then."""


class Way(Struct, frozen=True):
    """One direction of one link. ``to_the_last``: a receiver that left in order has taken everything.

    Of several senders nothing says from whom a frame came: then only all together can be counted.
    """

    link: str
    senders: tuple[str, ...]
    receiver: str
    to_the_last: bool = True

    @property
    def sender(self) -> str:
        """The senders as a sentence says them."""
        return " or ".join(self.senders)


def ways(history: History) -> list[Way]:
    """Every way that frames take in this plan."""
    first, *others = history.plan.topology.ranks
    found = [
        Way("startup", (first,), "client"),
        Way("startup", ("client",), first),
        Way("input", ("client",), first, to_the_last=False),  # an abort may come when the engine has left
        Way("input", (first,), "client"),
        Way("output", (first,), "client"),
    ]
    return found + [Way("relay", (first,), rank) for rank in others] + [Way("control", tuple(others), first)]


def check(history: History, target: Target) -> list[Finding]:
    """One finding per way, for the first frame that was lost, came twice or was never sent."""
    if history.ended != "done" or outcome.client_was_killed(history) or not outcome.is_ready(history):
        return []
    if any(process.role.endswith(AGAIN) for process in history.processes):
        return []
    in_order = outcome.left_in_order(history, target)
    dead = {process.role for process in history.processes if (process.status or 0) < 0} | {*outcome.killed(history)}
    findings = []
    for way in ways(history):
        if outcome.begun_with(history, way.link) or dead & {*way.senders, way.receiver}:
            continue
        if way.link == "relay" and target.promises(history.plan.engine.relay) == "nothing":
            continue
        findings += _way(history, target, way, in_order)
    return findings


def _way(history: History, target: Target, way: Way, in_order: bool) -> list[Finding]:
    sends = [
        event
        for event in history.of(site=f"{way.link}.send")
        if event.role in way.senders
        and event.text in ("", way.link, target.endpoint(way.link, way.receiver, history.plan))
    ]
    sent = [event for event in sends if event.side == "after" and event.ok]
    begun = Counter((event.kind, event.number) for event in sends if event.side == "before")
    got = [event for event in history.of(way.receiver, f"{way.link}.recv", "after") if event.ok and event.kind != "?"]
    if in_order:
        wrong = _strange(way, begun, got)
        if wrong is not None:
            return [wrong]
    lost = _lost(history, target, way, sent, got, in_order)
    if lost is None:
        return []
    sentence = f"{_frame(lost)} of {lost.role} on {way.link} never reached {way.receiver}"
    return [Finding.of("CONSERVE", sentence, lost)]


def _strange(way: Way, begun: Counter[tuple[str, int]], got: Sequence[Event]) -> Finding | None:
    seen: Counter[tuple[str, int]] = Counter()
    for event in got:
        key = (event.kind, event.number)
        seen[key] += 1
        if seen[key] > begun[key]:
            how = "twice" if begun[key] else f"that {way.sender} never sent"
            return Finding.of("CONSERVE", f"{way.receiver} received {_frame(event)} on {way.link} {how}", event)
    return None


def _lost(
    history: History, target: Target, way: Way, sent: Sequence[Event], got: Sequence[Event], in_order: bool
) -> Event | None:
    """The first frame that was lost for certain."""
    if not in_order and target.may_lose(way.link, history.plan):
        return None
    arrived = Counter((event.kind, event.number) for event in got)
    left: list[Event] = []
    for event in sent:
        key = (event.kind, event.number)
        if arrived[key]:
            arrived[key] -= 1
            if left and len(way.senders) == 1:
                return left[0]  # a later one came: on one connection that is for ever
        elif event.kind not in _UNSURE:
            left.append(event)
    return left[0] if left and in_order and way.to_the_last and not _dropped(history, way) else None


def _dropped(history: History, way: Way) -> bool:
    """Whether the client let its engine go without waiting for what was on its way."""
    return way.receiver == "client" and any(event.kind == "processes" for event in history.of("client", "demand"))


def _frame(event: Event) -> str:
    return f"{event.kind} {event.number}" if event.number >= 0 else f"a {event.kind}"
