"""Seeded bugs: an engine that is wrong on purpose, what is true about the wrong, and whether a verdict says so.

A bug is a scenario file with a table ``[bug]`` and the plugin that its plan names::

    [bug]
    id = "H4"                                        # the letter of its group and a number
    rules = ["ORDER"]                                # oracles any one of which names it; WEDGE where it is a wedge
    edge = "dp0.rank1 waits for frame 1 on relay"    # with WEDGE: the true wait, written like ``blame`` in [expect]
    sound = "handshake"                              # where the bug is a relay of its own: the relay that is right

The plan is the one with the fewest faults that shows it. Without the plugin the same plan has to pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct, structs

from harness.plan import EngineOptions, Plan, PlanError
from harness.verdict import EXIT_FAILED, EXIT_UNKNOWN, Verdict

WEDGE = "WEDGE"
"""Stands among a bug's rules for a wedge that names its edge."""

GROUPS: dict[str, str] = {
    "H": "handshake and relay",
    "C": "collectives",
    "E": "client and death",
    "U": "utilities",
    "A": "abort",
    "S": "start-up",
    "T": "shutdown and signals",
    "B": "buffers",
}
"""The letters of ids."""


class Bug(Struct, frozen=True):
    """One seeded bug. ``name`` is its scenario's, ``faults`` how many its plan has, ``plugin`` the module that is it.

    ``engine`` are the options of the plan, plugin included: what a hunt for the bug runs.
    """

    id: str
    name: str
    title: str
    report: str
    rules: tuple[str, ...]
    edge: str
    faults: int
    plugin: str
    engine: EngineOptions
    sound: str = ""

    @property
    def group(self) -> str:
        """What the letter of the id stands for."""
        return GROUPS[self.id[0]]

    @property
    def relay(self) -> str:
        """The relay strategy that the bug is in, empty where it is in none or in the default one."""
        return "" if self.engine.relay == EngineOptions().relay else self.engine.relay

    def put_into(self, plan: Plan) -> Plan:
        """The plan, run by the engine that has the bug; the relay strategy stays the plan's own."""
        engine = plan.engine
        return structs.replace(
            plan,
            engine=structs.replace(
                engine,
                plugins=tuple(dict.fromkeys([*engine.plugins, self.plugin])),
                config={**self.engine.config, **engine.config},
            ),
        )

    def taken_from(self, plan: Plan) -> Plan:
        """The plan, run by the engine as it is without the bug."""
        engine = plan.engine
        plugins = tuple(plugin for plugin in engine.plugins if plugin != self.plugin)
        relay = self.sound if self.sound and engine.relay == self.engine.relay else engine.relay
        return structs.replace(plan, engine=structs.replace(engine, plugins=plugins, relay=relay))

    def is_detected_by(self, verdict: Verdict) -> bool:
        """Whether a run failed for certain and the bug did something wrong in it."""
        return verdict.exit_code == EXIT_FAILED and bool(Sighting.of(self, [verdict]).triggered)

    def is_named_by(self, verdict: Verdict) -> bool:
        """Whether a verdict says what is wrong: one of the rules among its findings, or the edge in its blame.

        What a hunt finds may be another frame of another rank, so numbers do not matter, nor which rank >= 1 it is.
        """
        if any(finding.oracle in self.rules for finding in verdict.findings):
            return True
        waits = verdict.blame.waits if verdict.blame is not None and WEDGE in self.rules else ()
        return any(_shape(self.edge) in _shape(f"{wait.role} waits for {wait.waits_for}") for wait in waits)


def _shape(edge: str) -> str:
    """An edge without numbers, and without which of the ranks >= 1 it is of."""
    return re.sub(r"\d+", "#", re.sub(r"rank[1-9]\d*", "rank+", edge))


class Sighting(Struct, frozen=True):
    """One bug over several runs: in how many it was reached and triggered, how many failed, how many name it."""

    id: str
    name: str
    runs: int
    reached: int
    triggered: int
    failed: int
    named: int

    @classmethod
    def of(cls, bug: Bug, verdicts: Iterable[Verdict]) -> Sighting:
        """Counts verdicts."""
        runs = reached = triggered = failed = named = 0
        for verdict in verdicts:
            trace = next((trace for trace in verdict.bugs if trace.id == bug.id), None)
            runs += 1
            reached += bool(trace and trace.reached)
            triggered += bool(trace and trace.triggered)
            failed += verdict.exit_code in (EXIT_FAILED, EXIT_UNKNOWN)
            named += bug.is_named_by(verdict)
        return cls(bug.id, bug.name, runs, reached, triggered, failed, named)

    def and_then(self, other: Sighting) -> Sighting:
        """Both together."""
        return Sighting(
            self.id,
            self.name,
            self.runs + other.runs,
            self.reached + other.reached,
            self.triggered + other.triggered,
            self.failed + other.failed,
            self.named + other.named,
        )


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    rules: tuple[str, ...]
    edge: str = ""
    sound: str = ""


def of_table(raw: Any, name: str, title: str, report: str, plan: Plan) -> Bug:
    """The bug that a ``[bug]`` table and the plan beside it describe. Raises PlanError, which names the field."""
    if not isinstance(raw, Mapping):
        raise PlanError("bug: expected a table")
    try:
        table = msgspec.convert(raw, _Table)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$.")
        raise PlanError(f"bug{'.' if where else ''}{where.rstrip('`')}: {text}") from None
    if not re.fullmatch(rf"[{''.join(GROUPS)}][1-9]\d*", table.id):
        groups = ", ".join(f"{letter} {words}" for letter, words in GROUPS.items())
        raise PlanError(f"bug.id: '{table.id}' is no letter of a group and a number; groups are {groups}")
    if not table.rules:
        raise PlanError(f"bug.rules: empty; expected the codes of oracles, or {WEDGE}")
    if (WEDGE in table.rules) != bool(table.edge):
        raise PlanError(f"bug.edge: expected with {WEDGE} among the rules, and only then")
    if len(plan.engine.plugins) != 1:
        raise PlanError(f"engine.plugins: a bug is one plugin, here are {len(plan.engine.plugins)}")
    return Bug(
        id=table.id,
        name=name,
        title=title,
        report=report,
        rules=table.rules,
        edge=table.edge,
        faults=len(plan.faults),
        plugin=plan.engine.plugins[0],
        engine=plan.engine,
        sound=table.sound,
    )
