"""The catalogue: every kind of fault with its sentence, its settings and an example, as `nowedge faults` shows it.

A fault on one line is its kind and its settings, ``kill at=dp0.rank1:relay.recv[step]#2:after``; a plan file has the
same as a table.
"""

from __future__ import annotations

import difflib
import inspect
import json
import shlex
import sys
import tomllib
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import Struct

from harness.faults import AtInstant, Fault, OnFrames

_FAMILIES = {"process": AtInstant, "frames": OnFrames}
"""What else there is, is done by the client program."""

EXAMPLES: dict[str, str] = {
    "abort_race": "abort_race request=0 when=first_token",
    "block": "block at=dp0.rank1:relay.connect#1:before until=dp0.rank0:relay.bind#1:after",
    "block_loop": "block_loop request=0 after_tokens=1 seconds=0.2",
    "cancel": "cancel request=0 after_tokens=1",
    "clock": "clock at=dp0.rank1:tp.all_reduce#2:before seconds=0.4",
    "close": "close request=0 after_tokens=1",
    "corrupt": "corrupt link=relay frame=step victim=dp0.rank1 nth=2",
    "delay": "delay at=dp0.rank1:start seconds=0.3",
    "descriptors": "descriptors at=dp0.rank1:tp.all_reduce#2:before left=0",
    "drop": "drop link=relay frame=step victim=dp0.rank1 nth=2",
    "drop_client": "drop_client request=0 after_tokens=1",
    "duplicate": "duplicate link=relay frame=step victim=dp0.rank1 nth=2",
    "exit": "exit at=dp0.rank1:tp.all_reduce#2:before code=0",
    "extra": "extra at=dp0.rank1:tp.all_reduce#5:before",
    "flood": "flood count=5",
    "foreign": "foreign link=relay frame=step victim=dp0.rank1 nth=2",
    "full_disk": "full_disk at=dp0.rank0:relay.bind#1:before",
    "high_water": "high_water at=dp0.rank0:start link=relay messages=1",
    "hold": "hold link=relay frame=join victim=dp0.rank1 until=dp0.rank0:relay.send[step]#1:after or_after=0.3",
    "kill": "kill at=dp0.rank0:output.send[outputs]#2:after to=dp0.rank1",
    "lag": "lag link=relay frame=step victim=dp0.rank1 nth=1 count=3 seconds=0.02",
    "linger": "linger at=dp0.rank0:start link=output milliseconds=0",
    "long_path": "long_path size=120",
    "memory": "memory at=dp0.rank1:tp.all_reduce#2:before megabytes=8",
    "poison": "poison what=token",
    "raise": "raise at=dp0.rank1:call(engine.core:EngineCore.step)#2:before",
    "refuse": "refuse link=relay frame=step victim=dp0.rank1 nth=2",
    "reorder": "reorder link=relay frame=step victim=dp0.rank1 nth=2",
    "restart": "restart at=dp0.rank0:output.send[outputs]#2:after to=dp0.rank1",
    "reset": "reset link=relay frame=step victim=dp0.rank1 nth=2",
    "skip": "skip at=dp0.rank1:tp.all_reduce#5:before",
    "slow": "slow link=relay frame=step victim=dp0.rank1 nth=1 rate=100000",
    "slow_reader": "slow_reader request=0 seconds=0.05",
    "squat": "squat at=dp0.rank0:relay.bind#1:after link=relay",
    "stale": "stale link=relay of=engine",
    "stall": "stall link=relay frame=step victim=dp0.rank1 nth=2 or_after=0.3",
    "stop": "stop at=dp0.rank1:relay.recv[step]#2:after seconds=0.3",
    "store": "store at=dp0.rank1:start or_after=0.3",
    "swap": "swap at=dp0.rank1:tp.all_reduce#5:before",
    "terminate": "terminate at=dp0.rank0:output.send[outputs]#2:after to=client signal=TERM",
    "truncate": "truncate link=relay frame=step victim=dp0.rank1 nth=2 keep=4",
    "unlink": "unlink at=dp0.rank0:output.send[outputs]#1:after link=relay",
    "wrong_root": "wrong_root at=dp0.rank1:tp.broadcast#1:before root=1",
    "wrong_shape": "wrong_shape at=dp0.rank1:tp.all_reduce#5:before elements=1",
}


OPTIONS: dict[str, str] = {"wrong_root": "--relay unsynchronised"}
"""What an example needs besides: only that relay has a broadcast."""


class FaultTextError(ValueError):
    """A line that names no fault; the message says what is wrong and shows the form."""


class Setting(Struct, frozen=True):
    """One setting of a fault; ``default`` is None where there is none and the setting is needed."""

    name: str
    type: str
    default: str | None


class Entry(Struct, frozen=True):
    """One kind of fault. ``family`` says who does it: a process to itself, the proxy to frames, or the client."""

    kind: str
    family: str
    sentence: str
    about: str
    settings: tuple[Setting, ...]
    example: str

    @property
    def command(self) -> str:
        """How to try the example."""
        return " ".join(filter(None, ["nowedge run healthy", OPTIONS.get(self.kind, ""), f"--fault '{self.example}'"]))


def entries() -> list[Entry]:
    """The whole catalogue, by family and then by kind."""
    found = [_entry(kind) for kind in get_args(Fault)]
    order = [*_FAMILIES, "client"]
    return sorted(found, key=lambda entry: (order.index(entry.family), entry.kind))


def entry(kind: str) -> Entry:
    """One entry. Raises FaultTextError with the nearest name."""
    found = {one.kind: one for one in entries()}
    if kind not in found:
        raise FaultTextError(f"no fault '{kind}'; {_nearest(kind)}")
    return found[kind]


def _entry(record: type[Struct]) -> Entry:
    kind = str(record.__struct_config__.tag)
    family = next((name for name, members in _FAMILIES.items() if record in get_args(members)), "client")
    module = inspect.getdoc(sys.modules[record.__module__]) or ""
    return Entry(
        kind,
        family,
        module.splitlines()[0].partition(": ")[2],
        inspect.getdoc(record) or "",
        _settings(record),
        EXAMPLES.get(kind, ""),
    )


def _settings(record: type[Struct]) -> tuple[Setting, ...]:
    hints = get_type_hints(record)
    return tuple(
        Setting(field.name, _type(hints[field.name]), _default(field)) for field in msgspec.structs.fields(record)
    )


def _type(hint: Any) -> str:
    words = {"Instant": "instant", "str": "text", "float": "number", "int": "whole number", "bool": "true or false"}
    parts = [part for part in get_args(hint) if part is not type(None)]
    if str(hint).startswith("typing.Literal"):
        return ", ".join(map(str, parts))
    if str(hint).startswith("tuple["):
        return "list"
    if parts:
        return " or ".join(dict.fromkeys(_type(part) for part in parts))
    return words.get(hint.__name__, str(hint.__name__))


def _default(field: Any) -> str | None:
    if field.default is not msgspec.NODEFAULT:
        return "none" if field.default is None else json.dumps(field.default, default=str)
    return "none" if field.default_factory is not msgspec.NODEFAULT else None


def table_of(line: str) -> dict[str, Any]:
    """The table of a fault that is given on one line. Raises FaultTextError.

    Values are read as TOML, else as text. What is wrong in them is for the plan to say.
    """
    try:
        kind, *words = shlex.split(line)
    except ValueError as error:
        raise FaultTextError(f"'{line}' names no fault ({error}); expected KIND SETTING=VALUE ...") from None
    entry(kind)
    table: dict[str, Any] = {"kind": kind}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise FaultTextError(f"'{word}' in '{line}' is no SETTING=VALUE; for example {EXAMPLES.get(kind, kind)}")
        table[name] = _value(value)
    return table


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _nearest(kind: str) -> str:
    kinds = sorted(str(record.__struct_config__.tag) for record in get_args(Fault))
    near = difflib.get_close_matches(kind, kinds, n=1)
    return f"did you mean {near[0]}?" if near else f"there is {', '.join(kinds)}"
