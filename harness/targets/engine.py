"""The engine of this repository as a target: its names, its promises, and what its exit codes mean."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from engine import relay as relays
from engine.config import PROFILES, EngineConfig, Timeouts
from engine.errors import ConfigError, ExitCode
from engine.messages import ENGINE_CORE_DEAD, MessageType
from engine.model.config import MODELS
from engine.relay import frames as relay_frames
from harness.faults import Drop, Hold
from harness.plan import EngineOptions, Plan, PlanError
from harness.proxy.records import Kind
from harness.targets import Patience

_UNKNOWN = Kind("?")
_FRAMES = {"relay": ("join", "hello", "done", "step", "fail", "stop")}
_PROXIED = ("relay",)


def config_of(plan: Plan, socket_dir: str | None) -> EngineConfig:
    """The engine's configuration for a plan. Raises ConfigError."""
    timeouts = PROFILES[plan.engine.timeouts]
    if plan.engine.relay in relays.names() and relays.strategy(plan.engine.relay).unbounded:
        timeouts = msgspec.structs.replace(timeouts, step=None)
    return EngineConfig(
        model=plan.engine.model,
        tp_size=plan.topology.tp,
        relay=plan.engine.relay,
        timeouts=timeouts,
        socket_dir=socket_dir,
    )


class Engine:
    """See `harness.targets.Target`."""

    name = "engine"
    client = "harness.targets.engine_client:main"
    reference = "harness.targets.engine_client:reference"
    watches: ClassVar[dict[str, str]] = {
        "lifeline": "word from the launcher, or its death",
        "engine-monitor": "the death of a rank",
    }

    def check(self, plan: Plan) -> None:
        _import_plugins(plan.engine)
        try:
            config_of(plan, None)
        except ConfigError as error:
            field = {"tp_size": "topology.tp", "relay": "engine.relay", "model": "engine.model"}.get(error.field)
            raise PlanError(f"{field or error.field}: got {error.seen!r}, expected {error.expected}") from None
        for index, fault in enumerate(plan.faults):
            if isinstance(fault, Drop | Hold):
                self._check_frames(plan, index, fault)
        for link in plan.observe:
            if link not in _PROXIED:
                raise PlanError(f"observe: no link '{link}' can be observed; there is {', '.join(_PROXIED)}")

    def _check_frames(self, plan: Plan, index: int, fault: Drop | Hold) -> None:
        where = f"faults[{index}]"
        if fault.link not in _PROXIED:
            raise PlanError(f"{where}.link: no link '{fault.link}' has a proxy; there is {', '.join(_PROXIED)}")
        if fault.victim not in self.connectors(fault.link, plan):
            there = ", ".join(self.connectors(fault.link, plan)) or f"none with tp={plan.topology.tp}"
            raise PlanError(f"{where}.victim: '{fault.victim}' does not connect to {fault.link}; there is {there}")
        known = _FRAMES[fault.link]
        if fault.frame not in known and not fault.frame.isupper():
            raise PlanError(f"{where}.frame: no frame '{fault.frame}' on {fault.link}; there is {', '.join(known)}")

    def relays(self) -> tuple[str, ...]:
        return tuple(relays.names())

    def link_of(self, endpoint: str) -> str:
        return endpoint.rsplit("/", 1)[-1].partition("@")[0]

    def group_name(self, description: str) -> str:
        return "tp" if description in ("default_pg", "tp") else description

    def classify(self, link: str, direction: str, frames: Sequence[bytes]) -> Kind:
        if link == "relay":
            return _relay_kind(frames[-1]) if frames else _UNKNOWN
        if link == "input":
            return _input_kind(frames)
        if link.partition(".")[0] == "output":
            return Kind("dead") if list(frames) == [ENGINE_CORE_DEAD] else Kind("outputs", _first_number(frames[0]))
        return _UNKNOWN

    def frame(self, link: str, name: str, plan: Plan) -> str:
        return "SUBSCRIBE" if name == "join" else name

    def binder(self, link: str) -> str:
        return "dp0.rank0" if link == "relay" else "client"

    def connectors(self, link: str, plan: Plan) -> tuple[str, ...]:
        return plan.topology.ranks[1:] if link == "relay" else plan.topology.ranks[:1]

    def exit_meaning(self, status: int) -> str:
        if status < 0:
            return f"killed by signal {-status}"
        names = {code.value: code.name.lower().replace("_", " ") for code in ExitCode}
        return f"exit code {status} ({names[status]})" if status in names else f"exit code {status}"

    def left_for_a_peer(self, status: int) -> bool:
        return status == ExitCode.PEER_FAILED

    def patience(self, plan: Plan) -> Patience:
        timeouts = config_of(plan, None).timeouts
        # Half of the shortest deadline: the rest is for the machine.
        return Patience(min(timeouts.handshake, timeouts.startup) / 2, (timeouts.step or timeouts.startup) / 2)

    def promises(self, relay: str) -> str:
        return "nothing" if relays.strategy(relay).unbounded else "notices"


ENGINE = Engine()


def classify(link: str, direction: str, frames: Sequence[bytes]) -> Kind:
    """`Engine.classify`, for a proxy that knows it by name."""
    return ENGINE.classify(link, direction, frames)


def timeouts_of(plan: Plan) -> Timeouts:
    """The deadlines that the engine runs with, in seconds."""
    return config_of(plan, None).timeouts


def preload() -> None:
    """Imports all that the client and the ranks need, and makes the small model's weights, so that a fork is ready."""
    for module in ("engine.rank", "engine.llm", "engine.model.reference", "harness.targets.engine_client"):
        importlib.import_module(module)
    weights = importlib.import_module("engine.model.weights")
    tiny = MODELS["tiny"]
    for name in weights.shapes(tiny):
        weights.full(tiny, name)


def _import_plugins(options: EngineOptions) -> None:
    for plugin in options.plugins:
        try:
            importlib.import_module(plugin)
        except ImportError as error:
            raise PlanError(f"engine.plugins: cannot import '{plugin}': {error}") from None


_RELAY_KINDS = {kind.value: kind.name.lower() for kind in relay_frames.FrameKind}
_RAW_KINDS = {MessageType.ADD: "step", MessageType.ABORT: "step", MessageType.STOP: "stop"}


def _relay_kind(frame: bytes) -> Kind:
    if len(frame) >= relay_frames.HEADER.size and frame[0] == relay_frames.MAGIC:
        _, _, kind, epoch, number, *_ = relay_frames.HEADER.unpack_from(frame)
        return Kind(_RELAY_KINDS.get(kind, "?"), number, epoch)
    for head, kind in _RAW_KINDS.items():
        if frame.startswith(head):
            return Kind(kind)
    return _UNKNOWN


def _input_kind(frames: Sequence[bytes]) -> Kind:
    kinds = {MessageType.ADD.value: "add", MessageType.ABORT.value: "abort"}
    for frame in frames[:2]:
        if frame in kinds:
            return Kind(kinds[frame], _first_number(frames[-1]))
    return Kind("hello") if frames else _UNKNOWN


def _first_number(body: bytes) -> int | None:
    try:
        record = msgspec.msgpack.decode(body)
    except msgspec.DecodeError:
        return None
    return record[0] if isinstance(record, list) and record and isinstance(record[0], int) else None
