"""The cells of an enumeration: what is done at every instant and to every frame, and the plan of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct, structs

from harness.faults import Drop, Duplicate, Fault, Hold, Kill, Raise, Reorder, Reset, Stop
from harness.instant import Instant, Side
from harness.plan import Plan
from harness.search.places import FramePlace, Places, sides

PAUSE = 0.3
"""Seconds for which a stop stops and a hold holds: less than any deadline of the engine, so that it has to serve."""

SIDES: tuple[Side, ...] = ("before", "after")

ON_INSTANTS: dict[str, Callable[[Instant], Fault]] = {
    "kill": lambda at: Kill(at=at),
    "stop": lambda at: Stop(at=at, seconds=PAUSE),
    "raise": lambda at: Raise(at=at),
}
"""What is done at every instant."""

ON_FRAMES: dict[str, Callable[[FramePlace], Fault]] = {
    "drop": lambda it: Drop(**_named(it)),
    "duplicate": lambda it: Duplicate(**_named(it)),
    "hold": lambda it: Hold(**_named(it), or_after=PAUSE),
    "reorder": lambda it: Reorder(**_named(it)),
    "reset": lambda it: Reset(**_named(it)),
}
"""What is done to every frame."""


def _named(place: FramePlace) -> dict[str, Any]:
    return {name: getattr(place, name) for name in FramePlace.__struct_fields__}


class Cell(Struct, frozen=True):
    """One fault at one place: the row and the column of the table, and the plan."""

    row: str
    column: str
    plan: Plan

    @property
    def name(self) -> str:
        """``kill:before at dp0.rank1:relay.connect#1``."""
        return f"{self.column} at {self.row}"

    @property
    def kind(self) -> str:
        """The kind of its fault."""
        return self.column.partition(":")[0]

    @property
    def fault(self) -> Fault:
        """Its fault, the last of its plan."""
        return self.plan.faults[-1]


def cells_of(plan: Plan, places: Places) -> Iterator[Cell]:
    """Every cell there could be, row by row: role by role, link by link, each in the order of a run."""
    roles, links = plan.topology.roles, [frame.link for frame in places.frames]
    for call, of_call in sides(sorted(places.instants, key=lambda at: roles.index(at.role))).items():
        for kind, at_instant in ON_INSTANTS.items():
            for side in SIDES:
                if side in of_call:
                    yield Cell(call, f"{kind}:{side}", plus(plan, at_instant(of_call[side])))
    for frame in sorted(places.frames, key=lambda place: links.index(place.link)):
        for kind, to_frame in ON_FRAMES.items():
            yield Cell(str(frame), kind, plus(plan, to_frame(frame)))


def plus(plan: Plan, fault: Fault) -> Plan:
    """The plan with one fault more, behind its own."""
    return structs.replace(plan, faults=(*plan.faults, fault))
