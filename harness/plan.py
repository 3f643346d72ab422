"""A plan: the whole description of one run. Immutable, typed, with a strict round trip through JSON and TOML.

Two equal plans are the same experiment. A plan says nothing of why it was chosen or of what should come of it; those
belong to scenario files and replay files, which carry a plan inside.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import tomllib
from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct, field

from harness.faults import Fault, OnClient, OnFrames, catalogue, instants_of, roles_named
from harness.faults.moments import TokenFault
from harness.instant import Instant, InstantError, is_call

MAX_TP = 4


ONE_MORE = "faults.+"
"""The path of a fault that a plan does not have yet."""


class PlanError(ValueError):
    """A plan that cannot be run; one clear sentence that names the field and what was expected there."""


class Topology(Struct, frozen=True, forbid_unknown_fields=True):
    """How many processes there are and how they start: ``fork`` from the zygote (20 ms) or ``spawn`` (2 to 3 s)."""

    tp: int = 2
    start: Literal["fork", "spawn"] = "fork"

    @property
    def ranks(self) -> tuple[str, ...]:
        return tuple(f"dp0.rank{rank}" for rank in range(self.tp))

    @property
    def roles(self) -> tuple[str, ...]:
        return ("client", *self.ranks)


class EngineOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """What the target is started with. ``plugins`` are modules imported in every process before the target's code.

    ``config`` are further settings of the target by their own names; the target says which there are.
    """

    model: str = "tiny"
    relay: str = "pushpull"
    timeouts: Literal["short", "default"] = "short"
    plugins: tuple[str, ...] = ()
    config: dict[str, bool | int | float | str] = field(default_factory=dict)


class Request(Struct, frozen=True, forbid_unknown_fields=True):
    """One generation request: token ids in, at most ``max_tokens`` out.

    ``at`` is ``ready`` (sent the moment the engine is ready) or ``previous`` (sent when the request before it ended);
    ``after`` are seconds more that the client waits then, with an engine that may have nothing else to do.
    """

    prompt: tuple[int, ...]
    max_tokens: int = 4
    at: Literal["ready", "previous"] = "ready"
    after: float = 0.0


class Workload(Struct, frozen=True, forbid_unknown_fields=True):
    """What the client asks for. Request k is called ``rk`` in histories and findings.

    ``utilities`` are calls without arguments by their names, made one after the other when every request is over.
    """

    requests: tuple[Request, ...] = (Request(prompt=(1, 2, 3)),)
    utilities: tuple[str, ...] = ()


class Plan(Struct, frozen=True, forbid_unknown_fields=True):
    """One run: what to start, what to ask, what to break. ``budget`` is in seconds and is never an oracle."""

    topology: Topology = field(default_factory=Topology)
    engine: EngineOptions = field(default_factory=EngineOptions)
    workload: Workload = field(default_factory=Workload)
    faults: tuple[Fault, ...] = ()
    observe: tuple[str, ...] = ()
    seed: int = 0
    budget: float = 30.0
    target: str = "engine"

    @property
    def digest(self) -> str:
        """32 hexadecimal digits of BLAKE2b over the canonical JSON form."""
        return hashlib.blake2b(to_json(self), digest_size=16).hexdigest()

    @property
    def proxied(self) -> tuple[str, ...]:
        """The links that run through the proxy: those with a frame fault, and those that the plan wants observed."""
        links = [fault.link for fault in self.faults if isinstance(fault, OnFrames)]
        return tuple(dict.fromkeys([*links, *(name for name in self.observe if not is_call(name))]))

    @property
    def calls(self) -> tuple[str, ...]:
        """The functions that are sites in this plan: those of its instants, and those that it wants observed."""
        named = [instant.site for fault in self.faults for instant, _ in instants_of(fault)]
        return tuple(dict.fromkeys(name for name in [*named, *self.observe] if is_call(name)))


def to_json(plan: Plan) -> bytes:
    """The canonical JSON form: sorted keys, no spaces, defaults written out."""
    return msgspec.json.encode(plan, enc_hook=encode_hook, order="deterministic")


def to_builtins(plan: Plan) -> dict[str, Any]:
    """The plan as plain dictionaries, lists, strings and numbers."""
    built: dict[str, Any] = msgspec.to_builtins(plan, enc_hook=encode_hook)
    return built


def from_json(data: bytes | str) -> Plan:
    """Reads and checks a plan in JSON. Raises PlanError."""
    try:
        raw = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise PlanError(f"not JSON: {error}") from None
    return from_builtins(raw)


def from_toml(text: str) -> Plan:
    """Reads and checks a plan in TOML. Raises PlanError."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PlanError(f"not TOML: {error}") from None
    return from_builtins(raw)


def from_builtins(raw: Any) -> Plan:
    """Converts plain data to a checked plan. Raises PlanError that names the field, with the nearest known name."""
    if not isinstance(raw, Mapping):
        raise PlanError(f"a plan is a table of fields, not {type(raw).__name__}")
    try:
        plan = msgspec.convert(raw, Plan, dec_hook=decode_hook)
    except msgspec.ValidationError as error:
        raise PlanError(_explain(str(error))) from None
    check(plan)
    return plan


def check(plan: Plan) -> None:
    """Checks what types cannot say. Raises PlanError."""
    if not 1 <= plan.topology.tp <= MAX_TP:
        raise PlanError(f"topology.tp: {plan.topology.tp}; plans run with 1 to {MAX_TP} ranks")
    if not 0 < plan.budget <= 3600:
        raise PlanError(f"budget: {plan.budget}; expected more than 0 and at most 3600 seconds")
    if not plan.workload.requests:
        raise PlanError("workload.requests: empty; a run needs at least one request, or nothing is owed to anybody")
    for index, request in enumerate(plan.workload.requests):
        if not 0 <= request.after <= 600:
            raise PlanError(f"workload.requests[{index}].after: {request.after} is outside 0..600 seconds")
    for index, fault in enumerate(plan.faults):
        complaint = fault.complaint()
        if complaint:
            raise PlanError(f"faults[{index}].{complaint}")
        if isinstance(fault, OnClient):
            _check_requests(plan.workload.requests, index, fault)
        for name in roles_named(fault):
            if name not in plan.topology.roles:
                raise PlanError(
                    f"faults[{index}]: no role '{name}' with tp={plan.topology.tp}; "
                    f"there are {', '.join(plan.topology.roles)}"
                )


def _check_requests(requests: tuple[Request, ...], index: int, fault: OnClient) -> None:
    """Checks that a client fault speaks of requests that there are, and of a token that is not the last one."""
    for number in fault.requests:
        if not 0 <= number < len(requests):
            there = f"r0 to r{len(requests) - 1}" if len(requests) > 1 else "only r0"
            raise PlanError(f"faults[{index}].request: no request r{number}; there is {there}")
    most = requests[fault.request].max_tokens
    if isinstance(fault, TokenFault) and fault.after_tokens >= most:
        raise PlanError(
            f"faults[{index}].after_tokens: {fault.after_tokens}; r{fault.request} is under way with 0 to {most - 1} "
            "tokens"
        )


def override(raw: dict[str, Any], path: str, value: str) -> None:
    """Sets one field of a raw plan by its dotted path, as ``--set engine.relay=handshake`` does.

    ``value`` is read as a TOML value, else as a string. Lists take a number: ``faults.0.at``. At :data:`ONE_MORE` it is
    a fault on one line, which is put behind the others. Raises PlanError.
    """
    if path == ONE_MORE:
        raw["faults"] = [*raw.get("faults", ()), catalogue.table_of(value)]
        return
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    *parents, last = path.split(".")
    here: Any = raw
    for step in parents:
        here = _descend(here, step, path)
    if isinstance(here, list):
        here[_list_index(here, last, path)] = parsed
    elif isinstance(here, dict):
        here[last] = parsed
    else:
        raise PlanError(f"{path}: '{here}' has no fields")


def _descend(here: Any, step: str, path: str) -> Any:
    if isinstance(here, list):
        return here[_list_index(here, step, path)]
    if isinstance(here, dict):
        return here.setdefault(step, {})
    raise PlanError(f"{path}: '{step}' is below a plain value")


def _list_index(items: list[Any], step: str, path: str) -> int:
    if not step.isdigit() or int(step) >= len(items):
        raise PlanError(f"{path}: '{step}' is no position in a list of {len(items)}")
    return int(step)


def encode_hook(value: Any) -> Any:
    """msgspec's way to write what it does not know: an instant as its text."""
    if isinstance(value, Instant):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def decode_hook(kind: type, value: Any) -> Any:
    """msgspec's way to read what it does not know: an instant from its text. Raises InstantError."""
    if kind is not Instant:
        raise TypeError(f"{kind.__name__} has no JSON form")
    if not isinstance(value, str):
        raise InstantError(f"expected an instant such as dp0.rank0:relay.send[hello]#2:after, not {value!r}")
    return Instant.parse(value)


_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`(?: - at `\$\.?(?P<where>[^`]*)`)?")


def _explain(message: str) -> str:
    """msgspec's sentence, with the path first and the nearest field name where a field is unknown."""
    match = _UNKNOWN.fullmatch(message)
    if match is None:
        text, _, where = message.partition(" - at `$")
        where = where.rstrip("`").lstrip(".")
        return f"{where}: {text}" if where else text
    name, where = match["name"], match["where"] or ""
    near = difflib.get_close_matches(name, sorted(_field_names()), n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"{where + ': ' if where else ''}unknown field '{name}'{hint}"


def _field_names() -> set[str]:
    records: tuple[type[Struct], ...] = (Plan, Topology, EngineOptions, Workload, Request, *get_args(Fault))
    return {name for record in records for name in record.__struct_fields__} | {"kind"}


__all__ = [
    "MAX_TP",
    "EngineOptions",
    "Instant",
    "InstantError",
    "Plan",
    "PlanError",
    "Request",
    "Topology",
    "Workload",
    "check",
    "decode_hook",
    "encode_hook",
    "from_builtins",
    "from_json",
    "from_toml",
    "override",
    "to_builtins",
    "to_json",
]
