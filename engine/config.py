"""The engine's configuration: frozen, validated, the same in the launcher and in every rank."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

import msgspec

from engine import relay
from engine.errors import ConfigError
from engine.model.config import MODELS, ModelConfig

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

LONGEST = 864_000.0
"""Seconds that a deadline may be away: ten days, which every wait of the system can count."""

MOST = 2**31 - 1
"""The largest count."""


class Timeouts(msgspec.Struct, frozen=True):
    """Deadlines in seconds, at most :data:`LONGEST`.

    `startup`: from the constructor's call until every rank is ready. `handshake`: from the forming of the group until
    every rank has joined the relay. `step`: for one iteration of the engine, None for no deadline (only a relay that
    has none by design accepts that). `stall`: without any progress inside a step, before health is red. `shutdown`: for
    an orderly stop, before signals are used.
    """

    startup: float = 60.0
    handshake: float = 30.0
    step: float | None = 60.0
    stall: float = 5.0
    shutdown: float = 10.0

    @classmethod
    def profile(cls, name: str) -> Timeouts:
        """The named profile: `default` or `short`."""
        _require_one_of("timeouts", name, sorted(PROFILES))
        return PROFILES[name]

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if field == "step" and value is None:
                continue
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= LONGEST:
                raise ConfigError(f"timeouts.{field}", value, f"a positive number of seconds, at most {LONGEST:.0f}")
            if type(value) not in (int, float):
                _set(self, field, float(value))


PROFILES = {"default": Timeouts(), "short": Timeouts(startup=5.0, handshake=2.0, step=1.0, stall=0.5, shutdown=2.0)}


class EngineConfig(msgspec.Struct, frozen=True):
    """Everything that says what engine to run.

    `socket_dir` None means a fresh private directory per engine, removed at its end; in a given one (a `str`, or a
    path, which becomes one) no file of the user's is touched. `relay_high_water` is the number of frames a relay socket
    may queue. `max_num_seqs` requests run at once and `max_waiting` more may wait; one step
    computes at most `max_batched_tokens` tokens; keys and values live in `num_pages` pages of `page_size` tokens.
    With `prefix_caching`, full pages of prompts that are the same are computed once and shared. Every `digest_interval`
    steps the ranks compare what they did. `client_count` clients may use the engine, each over links of its own; with
    `log_stats` every step also tells how full the engine is. Raises :class:`ConfigError` naming the field.
    """

    model: str = "tiny"
    tp_size: int = 1
    relay: str = "pushpull"
    timeouts: Timeouts = PROFILES["default"]
    socket_dir: str | None = None
    max_num_seqs: int = 16
    max_waiting: int = 1024
    max_batched_tokens: int = 256
    page_size: int = 16
    num_pages: int = 512
    digest_interval: int = 16
    relay_high_water: int = 1000
    prefix_caching: bool = True
    client_count: int = 1
    log_stats: bool = False
    log_level: str = "WARNING"

    def __post_init__(self) -> None:
        self._require_one_of("model", sorted(MODELS))
        self._require_count("tp_size")
        if not self.model_config.divides(self.tp_size):
            sizes = ", ".join(str(size) for size in self.model_config.tp_sizes())
            raise ConfigError("tp_size", self.tp_size, f"one of {sizes} (what the model {self.model} divides by)")
        self._require_one_of("relay", relay.names())
        timeouts: object = self.timeouts
        if not isinstance(timeouts, Timeouts):
            raise ConfigError("timeouts", timeouts, "a Timeouts record, for example Timeouts.profile('short')")
        if self.timeouts.step is None and not self.unbounded:
            raise ConfigError("timeouts.step", None, f"a positive number of seconds (relay {self.relay} is bounded)")
        for field in _COUNTS:
            self._require_count(field)
        for field in ("prefix_caching", "log_stats"):
            if not isinstance(getattr(self, field), bool):
                raise ConfigError(field, getattr(self, field), "true or false")
        self._require_one_of("log_level", LOG_LEVELS)
        if self.socket_dir is not None:
            _set(self, "socket_dir", _directory(self.socket_dir))

    @property
    def model_config(self) -> ModelConfig:
        return MODELS[self.model]

    @property
    def unbounded(self) -> bool:
        """Whether the relay strategy waits without deadlines by design."""
        return relay.strategy(self.relay).unbounded

    @property
    def step_limit(self) -> float | None:
        """Seconds for one iteration; None with an unbounded relay, whatever `timeouts.step` says."""
        return None if self.unbounded else self.timeouts.step

    def _require_count(self, field: str) -> None:
        value = getattr(self, field)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST:
            raise ConfigError(field, value, f"a whole number from 1 to {MOST}")
        if type(value) is not int:
            _set(self, field, int(value))

    def _require_one_of(self, field: str, options: Collection[str]) -> None:
        value = getattr(self, field)
        _require_one_of(field, value, options)
        if type(value) is not str:
            _set(self, field, str.__str__(value))


_COUNTS = (
    "max_num_seqs",
    "max_waiting",
    "max_batched_tokens",
    "page_size",
    "num_pages",
    "digest_interval",
    "relay_high_water",
    "client_count",
)


class Launch(msgspec.Struct, frozen=True):
    """What the launcher tells each rank: the configuration and what is particular to this run.

    `epoch` is random and marks every relay frame; `startup_at` is the start-up deadline on the monotonic clock;
    `directory` holds the run's sockets and, if `private`, goes away with the run.
    """

    config: EngineConfig
    epoch: int
    directory: str
    private: bool
    startup_at: float
    engine_index: int = 0

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, raw: bytes) -> Launch:
        return msgspec.msgpack.decode(raw, type=cls)


def _require_one_of(field: str, value: object, options: Collection[str]) -> None:
    if not isinstance(value, str) or value not in options:
        raise ConfigError(field, value, f"one of {', '.join(options)}")


def _set(record: msgspec.Struct, field: str, value: object) -> None:
    """While a record is made: put the plain value in the place of one of a derived type, which cannot be sent."""
    msgspec.structs.force_setattr(record, field, value)


def _directory(value: Any) -> str:
    """The given directory as text that can be sent to a rank and bound."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or not path or "\0" in path:
        raise ConfigError("socket_dir", value, "a directory, or None for a fresh private one")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ConfigError("socket_dir", value, "a path of characters that UTF-8 can write") from None
    return str.__str__(path)
