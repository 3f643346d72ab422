"""LEAK: what a client gives up, the engine gives up too (I24 and I43 of the client's invariants).

When every stream is over, by its end or because the client left it, the engine's table of requests is empty and no page
of its cache is in use. When the last reference to the engine's client is gone, so are the client and its processes.
"""

from __future__ import annotations

from harness.history import History
from harness.targets import Target
from harness.verdict import Finding


def check(history: History, target: Target) -> list[Finding]:
    """One finding per thing that is kept, as the client program saw it at its end."""
    if history.ended != "done":
        return []
    kept = [event for event in history.of("client", "demand") if not event.ok and event.kind in _WORDS]
    return [Finding.of("LEAK", _WORDS[event.kind].format(event.text), event) for event in kept]


_WORDS = {
    "requests": "the engine still holds {} although every stream is over",
    "pages": "pages of the cache are still in use although every stream is over",
    "reference": "the engine's client is still there although nothing refers to it any more",
    "processes": "{}: still running although nothing refers to the engine's client any more",
}
