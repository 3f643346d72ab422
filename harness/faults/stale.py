"""stale: a file of an earlier life lies where the engine wants to make one, left by a SIGKILL or by a stranger."""

from __future__ import annotations

from typing import Literal

from harness.faults.hand import Hand
from harness.faults.settings import InstantFault
from harness.instant import Instant


class Stale(InstantFault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="stale", tag_field="kind"):
    """At ``at``, before the engine begins, there is a dead socket at every endpoint of ``link``, or a store file.

    ``of`` an ``engine``: with all that a killed engine leaves beside it, so that the next one may know its own, and has
    to serve and to leave nothing. ``of`` a ``stranger``: with nothing beside it; the engine has to refuse, in one clear
    sentence, and to leave the file as it is. At a later ``at`` it comes between the choice of the address and its bind.
    The run's folder goes with the run.
    """

    at: Instant = Instant("client", "start")
    link: str = "relay"
    of: Literal["engine", "stranger"] = "engine"

    @property
    def early(self) -> bool:
        """Whether it is there before the engine looks."""
        return self.at == Instant("client", "start")

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        if self.of == "engine" and not self.early:
            return f"of: an engine before this one has left nothing new at {self.at}; write stranger, or leave out at"
        return None

    def strike(self, hand: Hand) -> None:
        if hand.leave_stale(self.link, self.of):
            hand.fired()

    def __str__(self) -> str:
        whose = "an earlier engine" if self.of == "engine" else "a stranger"
        return f"files of {whose} at {self.link}" + ("" if self.early else f" at {self.at}")
