"""Standalone scripts: one plan as one Python file without the harness and without the engine.

The script is a relay of tensor-parallel ranks in miniature, over real gloo and real libzmq, with the plan's faults. It
shows what is wrong with a protocol to somebody who has neither nowedge nor its engine: standard library, pyzmq
and torch. What the plan does not need is left out of it.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from harness import folder, replay, scenario
from harness import plan as plans
from harness.faults import (
    AtInstant,
    Delay,
    Drop,
    Duplicate,
    Exit,
    Fault,
    Hold,
    Kill,
    OnFrames,
    Stop,
    instants_of,
    kind_of,
)
from harness.plan import EngineOptions, Plan
from harness.targets import get

RELAYS = ("unsynchronised", "handshake", "subscribed", "pushpull")
"""The strategies that a script knows in miniature."""

WEDGED, SERVED, GAVE_UP = 1, 0, 3
"""Exit codes of a script."""

REPLAY = "replay.json"
"""What the replay file in the folder of a finding is called."""

_ON_INSTANTS = (Kill, Stop, Delay, Exit)
_ON_FRAMES = (Drop, Hold, Duplicate)
_LINKS = ("relay", "input", "output")
_SITES = re.compile(
    r"start|relay\.(bind|connect|send|recv)|tp\.(all_reduce|all_gather|broadcast)|output\.(send|recv)|input\.(send|recv)"
)
_SECTION = re.compile(r"^( *)# \[(?P<name>[^\]]+)\]\n(?P<body>.*?)^\1# \[end\]\n", re.MULTILINE | re.DOTALL)
_BODY = Path(__file__).with_name("standalone.py")

_LIMIT = 60.0
"""Seconds in which a script ends by itself, whatever becomes of it."""


class ScriptError(ValueError):
    """A plan that no standalone script can show; one clear sentence."""


class Source(Struct, frozen=True):
    """What a script is made of: its title, its plan, and where it goes if nobody says where."""

    title: str
    plan: Plan
    place: Path


class Shown(Struct, frozen=True):
    """A script that has been run several times: how often it wedged, served everything, or gave up by itself."""

    path: str
    runs: int
    wedged: int
    served: int
    gave_up: int

    def __str__(self) -> str:
        told = [(self.wedged, "wedged"), (self.served, "served"), (self.gave_up, "gave up by itself")]
        told.append((self.runs - self.wedged - self.served - self.gave_up, "broke"))
        return ", ".join(f"{words} {count} of {self.runs}" for count, words in told if count) or "not run"


def source(name: str, overrides: Sequence[tuple[str, str]] = ()) -> Source:
    """The one plan that ``name`` stands for: of a replay file, or of a scenario or plan file.

    ``overrides`` are set in it as by `harness.scenario.resolve`. Raises PlanError, ReplayError or ScriptError.
    """
    path = Path(name)
    if path.name == REPLAY:
        recorded = replay.load(path)
        raw = plans.to_builtins(recorded.plan)
        for field, value in overrides:
            plans.override(raw, field, value)
        return Source(
            f"{recorded.scenario or 'A plan'}: {recorded.word}", plans.from_builtins(raw), path.with_name("script.py")
        )
    found = [(one, member) for one in scenario.resolve(name, overrides) for member in one.members]
    if len(found) != 1:
        raise ScriptError(
            f"{name} has {len(found)} plans, and a script shows one; run it and take the replay file of one"
        )
    (one, member), *_ = found
    return Source(one.title or one.name, member.plan, folder.DEFAULT / f"{one.name.replace('-', '_')}.py")


def write(what: Source, path: Path, runs: int) -> Shown:
    """Writes the script, runs it ``runs`` times and says in its header what came of that. Raises ScriptError."""
    _write(path, compose(what))
    codes = [_run(path) for _ in range(runs)]
    shown = Shown(str(path), runs, codes.count(WEDGED), codes.count(SERVED), codes.count(GAVE_UP))
    if runs:
        _write(path, compose(what, shown))
    return shown


def shown_object(shown: Shown) -> dict[str, Any]:
    """The same as one JSON object."""
    told = structs.asdict(shown)
    return {"script": told.pop("path"), **told}


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ScriptError(f"cannot write {path}: {error.strerror or error}") from None


def _run(path: Path) -> int | None:
    """The exit code of one run, None if it did not end."""
    command = [sys.executable, "-E", path.name]
    with contextlib.suppress(subprocess.TimeoutExpired):
        return subprocess.run(command, cwd=path.parent, capture_output=True, timeout=_LIMIT, check=False).returncode
    return None


def check(plan: Plan) -> None:
    """Raises ScriptError for a plan that has what no script has."""
    engine, workload = plan.engine, plan.workload
    if engine.relay not in RELAYS or engine.plugins:
        raise ScriptError(f"a script has one of the relays {', '.join(RELAYS)} and no plugins, not {_named(engine)}")
    if engine.config:
        raise ScriptError(f"a script has no settings of the engine; this plan has {', '.join(engine.config)}")
    if workload.utilities or any(request.after for request in workload.requests):
        raise ScriptError("a script asks requests alone, at once or one after the other")
    for fault in plan.faults:
        _check_fault(fault)


def _named(engine: EngineOptions) -> str:
    return engine.relay + (f" with {', '.join(engine.plugins)}" if engine.plugins else "")


def _check_fault(fault: Fault) -> None:
    known = (*_ON_INSTANTS, *_ON_FRAMES)
    if not isinstance(fault, known):
        words = ", ".join(str(one.__struct_config__.tag) for one in known)
        raise ScriptError(f"a script can do {words}; not: {fault}")
    if isinstance(fault, OnFrames) and fault.link not in _LINKS:
        raise ScriptError(f"a script has the links {', '.join(_LINKS)}; not: {fault}")
    if isinstance(fault, Kill | Stop) and (fault.remote or (isinstance(fault, Stop) and fault.also)):
        raise ScriptError(f"in a script a process does what is done to itself alone; not: {fault}")
    for at, _ in instants_of(fault):
        if not _SITES.fullmatch(at.site):
            raise ScriptError(f"a script does not pass {at}, only relay, collectives, input and output")


def compose(what: Source, shown: Shown | None = None) -> str:
    """The text of the script; ``shown`` is told in its header. Raises ScriptError."""
    plan = what.plan
    check(plan)
    body = _BODY.read_text("utf-8")
    _, _, body = body.partition('"""\n\nfrom __future__')
    wanted = {f"relay {plan.engine.relay}", *(["frames"] if plan.proxied else [])}
    body = _SECTION.sub(_chosen(wanted, _settings(plan)), f"from __future__{body}")
    return f"#!/usr/bin/env python3\n{_header(what, shown)}\n\n{_tidy(body)}"


def _chosen(wanted: set[str], settings: str) -> Callable[[re.Match[str]], str]:
    def choose(match: re.Match[str]) -> str:
        if match["name"] == "plan":
            return settings
        return match["body"] if match["name"] in wanted else ""

    return choose


def _tidy(text: str) -> str:
    """Without the blank lines that are left where sections were."""
    text = re.sub(r"\n{4,}", "\n\n\n", text)
    head, torch, rest = text.partition("import torch\n")
    head = re.sub(r"(?<=\n)\n+(?=import )", "", head).replace("annotations\nimport", "annotations\n\nimport")
    return head.rstrip() + "\n\n" + torch + rest


def _header(what: Source, shown: Shown | None) -> str:
    plan = what.plan
    lines = [
        f'"""{what.title}',
        "",
        f"{plan.topology.tp} ranks, relay {plan.engine.relay}: the relay of a tensor-parallel engine in miniature,",
        "over real gloo and real libzmq. Needs pyzmq and torch.",
        "",
        *(f"- {fault}" for fault in plan.faults),
        *([""] if plan.faults else []),
        f"Exit code {WEDGED} for a wedge, {SERVED} if every request is served, {GAVE_UP} if all ranks gave up.",
    ]
    if shown is not None:
        lines += [f"Where it was written: {shown}."]
    return "\n".join([*lines, '"""'])


def _settings(plan: Plan) -> str:
    requests = [
        {"prompt": list(request.prompt), "max_tokens": request.max_tokens, "at": request.at}
        for request in plan.workload.requests
    ]
    rows = {
        "TP": plan.topology.tp,
        "RELAY": plan.engine.relay,
        "REQUESTS": requests,
        "FAULTS": [_fault(plan, fault) for fault in plan.faults],
        "LIMIT": 5.0,
    }
    return "".join(_row(name, value) for name, value in rows.items())


def _row(name: str, value: Any) -> str:
    """One line, or one line for each item of a list."""
    if not isinstance(value, list):
        return f"{name} = {json.dumps(value)}\n"
    items = "".join(f"    {json.dumps(item)},\n" for item in value)
    return f"{name}: list[dict[str, Any]] = [\n{items}]\n" if value else f"{name}: list[dict[str, Any]] = []\n"


def _fault(plan: Plan, fault: Fault) -> dict[str, Any]:
    told: dict[str, Any] = {"kind": kind_of(fault)}
    if isinstance(fault, AtInstant):
        told["at"] = str(fault.at)
        told |= {name: getattr(fault, name) for name in ("seconds", "code") if getattr(fault, name, None) is not None}
    elif isinstance(fault, OnFrames):
        frame = get(plan.target).frame(fault.link, fault.frame, plan)
        told |= {"link": fault.link, "frame": frame, "victim": fault.victim, "nth": fault.nth}
        told |= {name: getattr(fault, name) for name in ("count", "or_after") if getattr(fault, name, None) is not None}
        if isinstance(fault, Hold) and fault.until is not None:
            told["until"] = str(fault.until)
    return told
