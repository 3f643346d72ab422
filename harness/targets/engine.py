"""The engine of this repository as a target: its names, its promises, and what its exit codes mean."""

from __future__ import annotations

import importlib
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from engine import endpoints
from engine import relay as relays
from engine.claim import Claim
from engine.client.resources import LAST_LIMIT, REST_LIMIT
from engine.codec import CHECKSUM_BYTES, packed
from engine.config import PROFILES, EngineConfig, Timeouts
from engine.death import SETTLE
from engine.errors import ConfigError, ExitCode
from engine.launch import KILL_LIMIT
from engine.messages import ENGINE_CORE_DEAD, EngineReady, Hello, Init, MessageType
from engine.model.config import MODELS
from engine.monitor import LEAVE_GRACE
from engine.relay import frames as relay_frames
from engine.relay.numbered import FOLLOW_MARGIN
from engine.relay.pushpull import PushPullRelay
from engine.relay.subscribed import TOPIC
from engine.watchdog import MARGIN
from harness.faults import (
    Fault,
    HighWater,
    Linger,
    LongPath,
    OnFrames,
    OnMessages,
    Refuse,
    Squat,
    Stale,
    Unlink,
    WrongRoot,
    instants_of,
)
from harness.faults.refuse import CONNECT
from harness.instant import is_call
from harness.plan import EngineOptions, Plan, PlanError
from harness.proxy.records import Kind
from harness.seam import call_seam
from harness.seam.known import UnknownSiteError, check_site
from harness.seam.operations import STORE
from harness.targets import Bounds, Patience, Slice

_UNKNOWN = Kind("?")
_STARTUP: dict[type[msgspec.Struct], str] = {Hello: "hello", Init: "init", EngineReady: "ready"}
_FRAMES = {
    "relay": ("join", "hello", "done", "go", "step", "fail", "stop"),
    "control": ("join", "fail", "result"),
    "input": ("welcome", "add", "abort", "utility"),
    "output": ("outputs", "dead"),
    "startup": ("hello", "init", "ready"),
}
_AMONG_RANKS = ("relay", "control")
"""The links that rank 0 binds and the other ranks connect to; the client binds the others, and rank 0 connects."""

_BOUND = {"dp0.rank0": _AMONG_RANKS, "client": ("input", "output")}

_LINKS = ("relay", "control", "input", "output", "startup")
_GROUPS = ("tp",)

_ROOTED = {"unsynchronised": ("broadcast",)}
"""The rooted collectives of each relay; the model has none."""

_UTILITIES = ("is_scheduler_paused", "is_sleeping", "live_requests", "reset_prefix_cache", "step_counters")
"""The utilities that a workload can call: those without arguments that leave the engine serving as before."""

_ELSEWHERE = {
    "model": "engine.model",
    "tp_size": "topology.tp",
    "relay": "engine.relay",
    "timeouts": "engine.timeouts",
    "socket_dir": "the world",
}
"""Settings of the engine that a plan makes in another place."""

_DEFAULTS: dict[str, Any] = {"digest_interval": 1}
"""Settings that differ from the engine's own unless a plan says otherwise: ranks that differ are found at once."""

SLICE = 0.05
"""Seconds of the slices in which a rank waits for a collective, and for room on the relay."""

_FOREIGN_BITS = 0xF0F0_F0F0_F0F0_F0F0


def is_unbounded(plan: Plan) -> bool:
    """Whether the engine of that plan sets its steps no deadline."""
    relay = plan.engine.relay
    return relay in relays.names() and relays.strategy(relay).unbounded


def config_of(plan: Plan, socket_dir: str | None) -> EngineConfig:
    """The engine's configuration for a plan. Raises ConfigError."""
    timeouts = PROFILES[plan.engine.timeouts]
    if is_unbounded(plan):
        timeouts = msgspec.structs.replace(timeouts, step=None)
    return EngineConfig(
        model=plan.engine.model,
        tp_size=plan.topology.tp,
        relay=plan.engine.relay,
        timeouts=timeouts,
        socket_dir=socket_dir,
        **{**_DEFAULTS, **plan.engine.config},
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
        _check_config(plan.engine)
        try:
            config_of(plan, None)
        except ConfigError as error:
            field = _ELSEWHERE.get(error.field, f"engine.config.{error.field}")
            raise PlanError(f"{field}: got {error.seen!r}, expected {error.expected}") from None
        for index, method in enumerate(plan.workload.utilities):
            if method not in _UTILITIES:
                there = ", ".join(_UTILITIES)
                raise PlanError(f"workload.utilities[{index}]: no utility '{method}' for a workload; there is {there}")
        for index, fault in enumerate(plan.faults):
            _check_instants(index, fault)
            _check_resources(plan, index, fault)
            if isinstance(fault, OnFrames):
                self._check_frames(plan, index, fault)
            elif isinstance(fault, Squat) and fault.link not in _BOUND.get(fault.victim, ()):
                binds = ", ".join(_BOUND.get(fault.victim, ())) or "nothing"
                raise PlanError(f"faults[{index}].link: {fault.victim} does not bind {fault.link}; it binds {binds}")
        for link in plan.observe:
            if is_call(link):
                _check_call(link)
            elif link not in _FRAMES:
                raise PlanError(f"observe: no link '{link}' can be observed; there is {', '.join(_FRAMES)}")

    def _check_frames(self, plan: Plan, index: int, fault: OnFrames) -> None:
        where = f"faults[{index}]"
        if fault.link not in _FRAMES:
            raise PlanError(f"{where}.link: no link '{fault.link}' has a proxy; there is {', '.join(_FRAMES)}")
        if fault.victim not in self.connectors(fault.link, plan):
            there = ", ".join(self.connectors(fault.link, plan)) or f"none with tp={plan.topology.tp}"
            raise PlanError(f"{where}.victim: '{fault.victim}' does not connect to {fault.link}; there is {there}")
        known = (*_FRAMES[fault.link], *((CONNECT,) if isinstance(fault, Refuse) else ()))
        if fault.frame not in known and not fault.frame.isupper():
            raise PlanError(f"{where}.frame: no frame '{fault.frame}' on {fault.link}; there is {', '.join(known)}")
        kind = self.frame(fault.link, fault.frame, plan)
        if isinstance(fault, OnMessages) and kind.isupper():
            raise PlanError(f"{where}.frame: '{fault.frame}' is the command {kind}; a {fault} needs a message")

    def links(self, plan: Plan) -> tuple[str, ...]:
        return tuple(link for link in _LINKS if self.connectors(link, plan))

    def relays(self) -> tuple[str, ...]:
        return tuple(relays.names())

    def safe_relays(self) -> tuple[str, ...]:
        # A strategy of another module came with a plugin: a bug on purpose.
        own = {name: relays.strategy(name) for name in relays.names()}
        return tuple(name for name, one in own.items() if not one.unbounded and one.__module__.startswith("engine."))

    def link_of(self, endpoint: str) -> str:
        name = endpoint.rsplit("/", 1)[-1].partition("@")[0]
        return _NUMBERED_RELAY.sub("relay", name)

    def endpoint(self, link: str, connector: str, plan: Plan) -> str:
        if link == "relay" and _has_own_connections(plan.engine.relay):
            return f"relay.{connector.rpartition('rank')[2]}"
        return endpoints.STORE if link == STORE else link

    def leave_lock(self, folder: Path) -> None:
        claim = Claim.of(str(folder))
        claim.confirm()
        claim.release()

    def group_name(self, description: str) -> str:
        return "tp" if description in ("default_pg", "tp") else description

    def classify(self, link: str, direction: str, frames: Sequence[bytes]) -> Kind:
        if link in _AMONG_RANKS:
            return _relay_kind(frames[-1]) if frames else _UNKNOWN
        if link.partition(".")[0] == "input":
            return _input_kind(frames)
        if link.partition(".")[0] == "output":
            return Kind("dead") if list(frames) == [ENGINE_CORE_DEAD] else Kind("outputs", _first_number(frames[0]))
        if link == "startup":
            return _startup_kind(frames)
        return _UNKNOWN

    def frame(self, link: str, name: str, plan: Plan) -> str:
        if link != "relay" or name != "join":
            return name
        return "READY" if _has_own_connections(plan.engine.relay) else "SUBSCRIBE"

    def foreign(self, link: str, frames: Sequence[bytes]) -> list[bytes]:
        if link == "startup" or (link == "input" and len(frames) == 1):
            return _of_another_run(frames, 1 if link == "startup" else 0)
        if link not in _AMONG_RANKS or not frames or not _is_enveloped(frames[-1]):
            return list(frames)
        header, body = relay_frames.HEADER, frames[-1][relay_frames.HEADER.size :]
        magic, version, kind, epoch, number, length, _ = header.unpack_from(frames[-1])
        fields = (magic, version, kind, epoch ^ _FOREIGN_BITS, number, length)
        head = header.pack(*fields, 0)[:-_CHECKSUM_BYTES]
        checksum = zlib.crc32(body, zlib.crc32(head))
        return [*frames[:-1], header.pack(*fields, checksum) + body]

    def binder(self, link: str) -> str:
        return "dp0.rank0" if link in _AMONG_RANKS else "client"

    def connectors(self, link: str, plan: Plan) -> tuple[str, ...]:
        return plan.topology.ranks[1:] if link in _AMONG_RANKS else plan.topology.ranks[:1]

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

    def slices(self, plan: Plan) -> tuple[Slice, ...]:
        limit = None
        if not is_unbounded(plan):
            timeouts = config_of(plan, None).timeouts
            limit = max(timeouts.startup, timeouts.handshake, timeouts.step or 0.0)
        return tuple(Slice(sites, SLICE, limit) for sites in ("tp.", "relay.send"))

    def bounds(self, plan: Plan) -> Bounds:
        timeouts = config_of(plan, None).timeouts
        notice = SETTLE + REST_LIMIT / 1000
        leave = LEAVE_GRACE + KILL_LIMIT
        step = None if timeouts.step is None else timeouts.step + FOLLOW_MARGIN + MARGIN + notice
        return Bounds(
            start=timeouts.startup + SETTLE + leave,
            step=step,
            notice=notice,
            leave=leave,
            stop=timeouts.shutdown + LAST_LIMIT / 1000,
        )

    def tells_of_time(self, cause: str) -> bool:
        return _LATE.search(cause) is not None

    def left_at_a_deadline(self, status: int) -> bool:
        return status == ExitCode.DEADLINE

    def left_in_order(self, status: int) -> bool:
        return status == ExitCode.STOPPED

    def may_lose(self, link: str, plan: Plan) -> bool:
        return link == "relay" and not _has_own_connections(plan.engine.relay)

    def promises(self, relay: str) -> str:
        return "nothing" if relays.strategy(relay).unbounded else "notices"


ENGINE = Engine()


def classify(link: str, direction: str, frames: Sequence[bytes]) -> Kind:
    """`Engine.classify`, for a proxy that knows it by name."""
    return ENGINE.classify(link, direction, frames)


def foreign(link: str, frames: Sequence[bytes]) -> list[bytes]:
    """`Engine.foreign`, for a proxy that knows it by name."""
    return ENGINE.foreign(link, frames)


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


def _check_config(options: EngineOptions) -> None:
    """Raises PlanError for a setting that the engine does not have, or that the plan makes elsewhere."""
    known = [name for name in EngineConfig.__struct_fields__ if name not in _ELSEWHERE]
    for name in options.config:
        if name in _ELSEWHERE:
            raise PlanError(f"engine.config.{name}: that is set by {_ELSEWHERE[name]}")
        if name not in known:
            raise PlanError(f"engine.config.{name}: the engine has no such setting; there is {', '.join(known)}")


def _check_call(site: str) -> None:
    """Raises PlanError for a function that is not there."""
    try:
        call_seam.check(site)
    except call_seam.CallSiteError as error:
        raise PlanError(f"observe: {error}") from None


def _check_instants(index: int, fault: Fault) -> None:
    """Raises PlanError for an instant at a site that no run can pass."""
    for at, ends in instants_of(fault):
        link = at.site.partition(".")[0]
        kinds = (*_FRAMES[link], "subscribe", "unsubscribe", "?") if link in _FRAMES else ()
        try:
            check_site(at, _LINKS, _GROUPS, kinds)
        except UnknownSiteError as error:
            raise PlanError(f"faults[{index}].{'until' if ends else 'at'}: {error}") from None


def _check_resources(plan: Plan, index: int, fault: Fault) -> None:
    """Raises PlanError for a fault of a link or a collective that this plan's engine does not have."""
    link = getattr(fault, "link", None)
    known = (*_LINKS, STORE) if isinstance(fault, Stale | Unlink) else _LINKS
    if isinstance(fault, Stale | Unlink | HighWater | Linger) and link not in known:
        raise PlanError(f"faults[{index}].link: no link '{link}'; there is {', '.join(known)}")
    if isinstance(fault, LongPath) and plan.proxied:
        raise PlanError(
            f"faults[{index}]: so long a path leaves no room for the proxy's own sockets on {', '.join(plan.proxied)}; "
            "do without faults of frames and observe no link"
        )
    if isinstance(fault, WrongRoot):
        operation = fault.at.site.rpartition(".")[2]
        if operation not in _ROOTED.get(plan.engine.relay, ()):
            has = " and ".join(f"{name} has {', '.join(those)}" for name, those in _ROOTED.items())
            raise PlanError(
                f"faults[{index}].at: relay '{plan.engine.relay}' and the model use no {operation}, so it can have no "
                f"wrong root; {has}"
            )
        if fault.root >= plan.topology.tp:
            raise PlanError(f"faults[{index}].root: {fault.root}; with tp={plan.topology.tp} ranks count from 0")


_LATE = re.compile(r"\d s\b|deadline|late\b|waited|stopped|have arrived")
"""What every cause says that speaks of time: how many seconds, or of what has not come by then."""

_NUMBERED_RELAY = re.compile(r"^relay\.\d+$")
_CHECKSUM_BYTES = 4
_RELAY_KINDS = {kind.value: kind.name.lower() for kind in relay_frames.FrameKind}
_RAW_KINDS = {
    MessageType.ADD: "step",
    MessageType.ABORT: "step",
    MessageType.UTILITY: "step",
    MessageType.STOP: "stop",
}
_INPUT_KINDS = {
    MessageType.ADD.value: "add",
    MessageType.ABORT.value: "abort",
    MessageType.UTILITY.value: "utility",
}
_STARTUP_KINDS = {record.__struct_config__.tag: kind for record, kind in _STARTUP.items()}


def _has_own_connections(relay: str) -> bool:
    """Whether each rank has an endpoint of its own, ``relay.1`` and so on, and subscribes to nothing."""
    return relay in relays.names() and issubclass(relays.strategy(relay), PushPullRelay)


def _is_subscription(frame: bytes) -> bool:
    """Whether this is what an XPUB socket receives: 1 or 0 and a topic, either none or that of a rank."""
    return frame in (b"\x00", b"\x01") or (frame[:1] in (b"\x00", b"\x01") and frame[1:].startswith(TOPIC))


def _is_enveloped(frame: bytes) -> bool:
    return len(frame) >= relay_frames.HEADER.size and frame[0] == relay_frames.MAGIC


def _relay_kind(frame: bytes) -> Kind:
    if _is_enveloped(frame):
        _, _, kind, epoch, number, _, _ = relay_frames.HEADER.unpack_from(frame)
        return Kind(_RELAY_KINDS.get(kind, "?"), number, epoch)
    if _is_subscription(frame):
        return Kind("subscribe" if frame[0] else "unsubscribe")
    for head, kind in _RAW_KINDS.items():
        if frame.startswith(head):
            return Kind(kind)
    return _UNKNOWN


def _input_kind(frames: Sequence[bytes]) -> Kind:
    for index, frame in enumerate(frames[:2]):
        if frame in _INPUT_KINDS and len(frames) > index + 1:
            return Kind(_INPUT_KINDS[frame], _first_number(frames[index + 1]))
    return Kind("welcome") if frames else _UNKNOWN


def _startup_kind(frames: Sequence[bytes]) -> Kind:
    try:
        tag = msgspec.msgpack.decode(_content(frames[-1]))[0] if frames else None
    except (msgspec.MsgspecError, IndexError, TypeError):
        return _UNKNOWN
    return Kind(_STARTUP_KINDS.get(tag, "?") if isinstance(tag, int) else "?")


class _Numbered(msgspec.Struct, array_like=True):
    """A record that begins with its number; what follows is not looked at."""

    number: int


_numbered = msgspec.msgpack.Decoder(_Numbered).decode


def _of_another_run(frames: Sequence[bytes], place: int) -> list[bytes]:
    """A record with an epoch at that place of its array, of another epoch; what is no such record, unchanged."""
    try:
        fields = msgspec.msgpack.decode(_content(frames[-1]), type=list[Any])
        fields[place] ^= _FOREIGN_BITS
    except (msgspec.MsgspecError, IndexError, TypeError):
        return list(frames)
    return [*frames[:-1], packed(fields)]


def _content(body: bytes) -> bytes:
    """A body without its checksum, whether that is right or not."""
    return body[:-CHECKSUM_BYTES]


def _first_number(body: bytes) -> int | None:
    try:
        return _numbered(_content(body)).number
    except msgspec.MsgspecError:
        return None
