"""Scenarios: plans with a name, a title, the report they come from, and what they should end with.

A scenario file is a plan in TOML with four more fields (``title``, ``report``, ``tags``, ``[expect]``), all of which
may be left out, so that a bare plan is a scenario too. One more, ``[bug]``, makes it the scenario of a seeded bug (see
`harness.bug`). ``[family]`` makes several plans of one file: each key is the
dotted path of a field, each value the list of what to put there; several keys go together, first with first::

    [family]
    "faults.0.at" = ["dp0.rank0:relay.bind#1:after", "dp0.rank0:relay.send[hello]#1:before"]

``[expect]`` names the verdict by relay strategy (``handshake = "passed"``) and, under ``blame``, the wait that a wedge
has to name.
"""

from __future__ import annotations

import copy
import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, get_args

from msgspec import Struct, structs

from harness import bug as bug_tables
from harness import plan as plans
from harness.bug import Bug
from harness.plan import Plan, PlanError
from harness.verdict import Word

ALL = "all"

_ABOUT = ("title", "report", "tags", "expect", "family", "bug")
_WORDS: tuple[str, ...] = get_args(Word)


class ScenarioError(PlanError):
    """A scenario that does not exist or cannot be read; one clear sentence."""


class Member(Struct, frozen=True):
    """One plan of a scenario. ``name`` is empty unless the scenario is a family."""

    name: str
    plan: Plan
    expect: dict[str, Word]
    blame: str = ""

    @property
    def expected(self) -> Word | None:
        """The verdict that the file gives for this plan's relay strategy, or None if it says nothing of it."""
        return self.expect.get(self.plan.engine.relay)


class Scenario(Struct, frozen=True):
    """One scenario file. ``group`` is the folder it lies in, such as ``relay``; ``bug`` what is seeded in its plan."""

    name: str
    title: str
    report: str
    tags: tuple[str, ...]
    members: tuple[Member, ...]
    group: str = ""
    bug: Bug | None = None

    @property
    def family(self) -> bool:
        return bool(self.members[0].name)

    def with_bug(self, seeded: Bug) -> Scenario:
        """The same plans, run by an engine that has the bug. What they end with then is not for the file to say."""
        if self.bug is not None and self.bug.id == seeded.id:
            return self
        members = tuple(
            structs.replace(member, plan=seeded.put_into(member.plan), expect={}, blame="") for member in self.members
        )
        return structs.replace(self, members=members, bug=seeded)


def resolve(name: str, overrides: Sequence[tuple[str, str]] = ()) -> tuple[Scenario, ...]:
    """The scenarios that ``name`` stands for: one by name or by file, a whole group by its folder's name, or ``all``.

    ``overrides`` are (dotted path, value) pairs, set in every plan before it is checked. Raises ScenarioError.
    """
    path = Path(name)
    if path.suffix in (".toml", ".json") or "/" in name:
        return (read(path, overrides),)
    wanted = name.replace("_", "-")
    shipped = list(_shipped())
    for group, entry in shipped:
        if _name_of(entry.name) == wanted:
            return (parse(entry.read_text("utf-8"), wanted, overrides, group=group),)
    chosen = [(group, entry) for group, entry in shipped if name in (ALL, group)]
    if chosen:
        return tuple(
            parse(entry.read_text("utf-8"), _name_of(entry.name), overrides, group=group) for group, entry in chosen
        )
    names = [_name_of(entry.name) for _, entry in shipped]
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"`nowedge list` shows all {len(names)}"
    raise ScenarioError(f"no scenario '{name}'; {hint}")


def shipped() -> tuple[Scenario, ...]:
    """Every scenario of the installed package, in order of group and name."""
    return resolve(ALL)


def bugs() -> tuple[Bug, ...]:
    """Every seeded bug that is shipped, in order of group and number."""
    return _bugs()


def bug(wanted: str) -> Bug:
    """The seeded bug of that id, or of its scenario's name. Raises ScenarioError with the nearest."""
    known = _bugs()
    for one in known:
        if wanted.upper() == one.id or wanted.replace("_", "-") == one.name:
            return one
    names = {one.id: one.id for one in known} | {one.name: one.id for one in known}
    near = difflib.get_close_matches(wanted, [name for pair in names.items() for name in pair], n=1, cutoff=0.4)
    hint = f"did you mean {names[near[0]]}?" if near else f"`nowedge list --bugs` shows all {len(known)}"
    raise ScenarioError(f"no bug '{wanted}'; {hint}")


@cache
def _bugs() -> tuple[Bug, ...]:
    found = [scenario.bug for scenario in shipped() if scenario.bug is not None]
    return tuple(sorted(found, key=lambda one: (list(bug_tables.GROUPS).index(one.id[0]), int(one.id[1:]))))


def read(path: Path, overrides: Sequence[tuple[str, str]] = ()) -> Scenario:
    """Reads a scenario or plan file: TOML, or JSON if its name ends so. Raises ScenarioError."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise ScenarioError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ScenarioError(f"{path} is not a plan: not text in UTF-8") from None
    return parse(
        text, _name_of(path.name), overrides, form="json" if path.suffix == ".json" else "toml", where=str(path)
    )


def parse(
    text: str,
    name: str,
    overrides: Sequence[tuple[str, str]] = (),
    *,
    form: str = "toml",
    group: str = "",
    where: str = "",
) -> Scenario:
    """Reads a scenario from text. Raises ScenarioError, which begins with ``where``, or with the name."""
    try:
        raw = _decode(text, form)
        about = {key: raw.pop(key) for key in _ABOUT if key in raw}
        members = tuple(_members(raw, about, overrides))
        seeded = None
        if "bug" in about:
            shown = members if not overrides else tuple(_members(raw, about, ()))
            seeded = bug_tables.of_table(
                about["bug"], name, _text(about, "title"), _text(about, "report"), shown[0].plan
            )
        return Scenario(
            name=name,
            title=_text(about, "title"),
            report=_text(about, "report"),
            tags=tuple(_strings(about, "tags")),
            members=members,
            group=group,
            bug=seeded,
        )
    except PlanError as error:
        raise ScenarioError(f"{where or name}: {error}") from None


def _shipped() -> Iterator[tuple[str, Traversable]]:
    def below(folder: Traversable, group: str) -> Iterator[tuple[str, Traversable]]:
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
            if entry.is_dir():
                yield from below(entry, entry.name)
            elif entry.name.endswith(".toml"):
                yield group, entry

    yield from below(resources.files("scenarios"), "")


def _name_of(file: str) -> str:
    return file.rsplit(".", 1)[0].replace("_", "-")


def _decode(text: str, form: str) -> dict[str, Any]:
    try:
        raw = json.loads(text) if form == "json" else tomllib.loads(text)
    except ValueError as error:
        raise PlanError(f"not {form.upper()}: {error}") from None
    if not isinstance(raw, dict):
        raise PlanError(f"a plan is a table of fields, not {type(raw).__name__}")
    if "fingerprint" in raw and "plan" in raw:
        raise PlanError("this is a replay file; use `nowedge replay`")
    return raw


def _members(raw: dict[str, Any], about: dict[str, Any], overrides: Sequence[tuple[str, str]]) -> Iterator[Member]:
    family = about.get("family", {})
    if not isinstance(family, Mapping) or not all(isinstance(values, list) and values for values in family.values()):
        raise PlanError("family: expected a table from the path of a field to the list of its values")
    lengths = {len(values) for values in family.values()}
    if len(lengths) > 1:
        raise PlanError(f"family: lists of {' and '.join(map(str, sorted(lengths)))} values do not go together")
    for index in range(lengths.pop() if lengths else 1):
        chosen = {path: values[index] for path, values in family.items()}
        own = {**copy.deepcopy(raw), "expect": copy.deepcopy(about.get("expect", {}))}
        for path, value in chosen.items():
            plans.override(own, path, json.dumps(value))
        expect, blame = _expect(own.pop("expect"))
        for path, text in overrides:
            plans.override(own, path, text)
        name = ", ".join(_label(path, value) for path, value in chosen.items() if not path.startswith("expect."))
        yield Member(name=name, plan=plans.from_builtins(own), expect=expect, blame=blame)


def _label(path: str, value: Any) -> str:
    return value if isinstance(value, str) else f"{path.rsplit('.', 1)[-1]}={value}"


def _expect(raw: Any) -> tuple[dict[str, Word], str]:
    if not isinstance(raw, Mapping):
        raise PlanError("expect: expected a table from relay strategy to verdict")
    words = dict(raw)
    blame = _text(words, "blame")
    words.pop("blame", None)
    for relay, word in words.items():
        if word not in _WORDS:
            raise PlanError(f"expect.{relay}: '{word}' is no verdict; expected one of {', '.join(_WORDS)}")
    return words, blame


def _text(table: Mapping[str, Any], key: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str):
        raise PlanError(f"{key}: expected text, not {value!r}")
    return value


def _strings(table: Mapping[str, Any], key: str) -> list[str]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise PlanError(f"{key}: expected a list of texts, not {value!r}")
    return value
