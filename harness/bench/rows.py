"""The rows of the relays table: the known ways in which a rank relay wedges, and why some have no run here."""

from __future__ import annotations

from msgspec import Struct

UNSAFE = {
    "unsynchronised": (),
    "connected": ("scenarios.bugs.connected",),
    "unsynchronised-deadline": ("scenarios.bugs.unsynchronised_deadline",),
}
"""The strategies that are bad on purpose, with the plugins that they come with."""

_ANY = "*"


class Row(Struct, frozen=True):
    """One way to wedge: its name in the specification, what happens, and for which strategies there is no run, why."""

    name: str
    title: str
    without: dict[str, str] = {}

    def reason(self, relay: str) -> str:
        """Why there is no run for a strategy, empty if there ought to be one."""
        return self.without.get(relay, self.without.get(_ANY, ""))


_BAD = tuple(UNSAFE)


def _none(relays: tuple[str, ...], reason: str) -> dict[str, str]:
    return dict.fromkeys(relays, reason)


_NO_WORD = ("unsynchronised", "unsynchronised-deadline")
_NO_HANDSHAKE = "its start has no last word: the ranks wait for nothing that rank 0 would have to say"
_NO_COLLECTIVE = "its start has no collective"

ROWS = (
    Row(
        "W1",
        "rank 0 dies between the last round and the end of the start",
        _none(_NO_WORD, _NO_HANDSHAKE),
    ),
    Row("W2", "the frame that ends the start is lost", _none(_BAD, _NO_HANDSHAKE)),
    Row("W3", "a relay connection breaks and comes back"),
    Row("W4", "rank 0 alive but stopped in the start"),
    Row("W5", "rank k stopped in the start, or slow to load"),
    Row("W6", "rank k of four dies in the start"),
    Row("W7", "one rank of four never joins: is it named?"),
    Row("W8", "a damaged or foreign frame on the relay"),
    Row("W9", "another server binds the relay's address"),
    Row("W10", "a step frame is lost in service"),
    Row("W11", "more frames at once than the relay may queue"),
    Row("W12", "rank 0 dies while idle"),
    Row("W13", "rank k dies while idle"),
    Row("W14", "the ranks' schedulers have come apart"),
    Row("W15", "rank k fails on a frame that others can read"),
    Row("W16", "a leak is found on one rank only"),
    Row("W17", "rank k dies or stops before the last agreement of the start", _none(_BAD, _NO_COLLECTIVE)),
    Row("W18", "a rank dies while it loads"),
    Row("W19", "a signal inside a collective"),
    Row("W20", "rank 0 has unsent output when it is stopped"),
    Row("W21", "nobody reads the output for a while"),
    Row(
        "W22",
        "the start grows slow with ranks and load",
        {_ANY: "a matter of time, not of a wedge: `nowedge bench starts --tp 4`"},
    ),
    Row("W23", "an exception between two collectives of the start", _none(_BAD, _NO_COLLECTIVE)),
    Row(
        "W24",
        "a request before the engine is ready",
        {_ANY: "the client's constructor returns when the engine is ready"},
    ),
)
"""All rows, in the order of the specification."""
