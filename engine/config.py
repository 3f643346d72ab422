"""The engine's configuration: frozen, validated, the same in the launcher and in every rank."""

from __future__ import annotations

import math

import msgspec

from engine import relay
from engine.errors import ConfigError
from engine.model.config import MODELS, ModelConfig

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


class Timeouts(msgspec.Struct, frozen=True):
    """Deadlines in seconds.

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
        if name not in PROFILES:
            raise ConfigError("timeouts", name, f"one of {', '.join(sorted(PROFILES))}")
        return PROFILES[name]

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if field == "step" and value is None:
                continue
            good = isinstance(value, int | float) and not isinstance(value, bool)
            if not good or not (math.isfinite(value) and value > 0):
                raise ConfigError(f"timeouts.{field}", value, "a positive number of seconds")


PROFILES = {"default": Timeouts(), "short": Timeouts(startup=5.0, handshake=2.0, step=1.0, stall=0.5, shutdown=2.0)}


class EngineConfig(msgspec.Struct, frozen=True):
    """Everything that says what engine to run.

    `socket_dir` None means a fresh private directory per engine, removed at its end. `relay_high_water` is the number
    of frames a relay socket may queue. `max_num_seqs` requests run at once and `max_waiting` more may wait; one step
    computes at most `max_batched_tokens` tokens; keys and values live in `num_pages` pages of `page_size` tokens.
    Every `digest_interval` steps the ranks compare what they did. Raises :class:`ConfigError` naming the field.
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
    log_level: str = "WARNING"

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ConfigError("model", self.model, f"one of {', '.join(sorted(MODELS))}")
        _require_int("tp_size", self.tp_size, 1)
        if not self.model_config.divides(self.tp_size):
            sizes = ", ".join(str(size) for size in self.model_config.tp_sizes())
            raise ConfigError("tp_size", self.tp_size, f"one of {sizes} (what the model {self.model} divides by)")
        if self.relay not in relay.names():
            raise ConfigError("relay", self.relay, f"one of {', '.join(relay.names())}")
        if self.timeouts.step is None and not self.unbounded:
            raise ConfigError("timeouts.step", None, f"a positive number of seconds (relay {self.relay} is bounded)")
        for field in _COUNTS:
            _require_int(field, getattr(self, field), 1)
        if self.log_level not in LOG_LEVELS:
            raise ConfigError("log_level", self.log_level, f"one of {', '.join(LOG_LEVELS)}")
        if self.socket_dir is not None and not self.socket_dir:
            raise ConfigError("socket_dir", self.socket_dir, "a directory, or none for a fresh private one")

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


_COUNTS = (
    "max_num_seqs",
    "max_waiting",
    "max_batched_tokens",
    "page_size",
    "num_pages",
    "digest_interval",
    "relay_high_water",
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


def _require_int(field: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(field, value, f"a whole number of at least {least}")
