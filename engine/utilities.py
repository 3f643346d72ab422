"""What a client can ask the engine to do besides serving requests.

Calls are made in the order of arrival, between steps, on every rank alike; what rank 0 comes to is the reply. A call
that fails is a reply too, and the engine goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine import pausing
from engine.errors import EngineError
from engine.memory import LEVELS, TAGS
from engine.methods import Methods, attempt
from engine.pausing import Deferred
from engine.workers import WORKER_METHODS

if TYPE_CHECKING:
    from engine.core import EngineCore

UTILITIES = Methods("utility")

ON_EVERY_RANK = ("collective_rpc", "profile")
"""Methods that are answered from every rank's result, so that only rank 0 knows whether they have failed."""


def failed(method: str, text: str) -> str:
    """The failure text of a reply."""
    return f"Call to {method} method failed: {text}"


@UTILITIES.register
def pause_scheduler(core: EngineCore, mode: str = pausing.ABORT) -> Deferred | None:
    """Begin a pause (:mod:`engine.pausing`). In mode `wait` the reply comes when nothing is under way any more."""
    if mode not in pausing.MODES:
        raise ValueError(f"mode is {mode!r}, expected one of {', '.join(pausing.MODES)}")
    if mode == pausing.ABORT:
        core.abort_all()
    core.pausing.pause(mode)
    return core.pausing.drained() if mode == pausing.WAIT else None


@UTILITIES.register
def resume_scheduler(core: EngineCore) -> None:
    """End any pause; without one, nothing happens."""
    if core.memory.missing:
        raise ValueError(f"the engine sleeps, {' and '.join(core.memory.missing)} must be woken up first")
    core.pausing.resume()


@UTILITIES.register
def is_scheduler_paused(core: EngineCore) -> bool:
    """Whether a pause is on, also one that still waits for what is under way."""
    return core.pausing.mode is not None


@UTILITIES.register
def sleep(core: EngineCore, level: int = 1) -> None:
    """Pause in mode `abort` and give memory back: 1 the key-value cache, 2 the weights too."""
    if level not in LEVELS:
        raise ValueError(f"level is {level}, expected 1 (the key-value cache) or 2 (the weights too)")
    core.abort_all()
    core.pausing.pause(pausing.ABORT)
    core.scheduler.pages.forget()
    core.memory.release(LEVELS[level])


@UTILITIES.register
def wake_up(core: EngineCore, tags: list[str] | None = None) -> None:
    """Take memory back, all or what is named. Requests run again when all is there; awake, nothing happens."""
    unknown = [tag for tag in tags or () if tag not in TAGS]
    if unknown:
        raise ValueError(f"tags hold {unknown[0]!r}, expected {' and '.join(TAGS)}, or none for both")
    if not core.memory.missing:
        return
    _, failure = attempt(lambda: core.memory.restore(TAGS if tags is None else tags))
    if failure is not None and len(core.workers.roles) > 1:
        # The other ranks are awake and would wait for this one.
        raise EngineError(f"this rank cannot wake up: {failure}")
    if failure is not None:
        raise ValueError(failure)
    if not core.memory.missing:
        core.pausing.resume()


@UTILITIES.register
def is_sleeping(core: EngineCore) -> bool:
    """Whether any memory is given back."""
    return bool(core.memory.missing)


@UTILITIES.register
def reset_prefix_cache(core: EngineCore) -> bool:
    """Forget what the pages of prompts hold; False if requests under way still use some of them."""
    return core.scheduler.pages.forget()


@UTILITIES.register
def profile(core: EngineCore, start: bool, directory: str | None = None) -> list[str] | None:
    """Start a recording on every rank, or stop it and write a Chrome trace for each; the paths by rank.

    The directory exists. It may be named at the start, which tries it out, or at the end, which counts.
    """
    if start:
        core.everywhere("start_profile", [directory])
        return None
    return core.everywhere("stop_profile", [directory])


@UTILITIES.register
def step_counters(core: EngineCore) -> dict[str, int]:
    """How much was done so far; see :class:`engine.scheduler.Counters`."""
    return {"steps": core.steps, **core.scheduler.counters.all()}


@UTILITIES.register
def live_requests(core: EngineCore) -> list[tuple[int, str]]:
    """Client index and id of all requests under way, in the order in which they were accepted."""
    return core.scheduler.live()


@UTILITIES.register
def collective_rpc(core: EngineCore, method: str, args: list[Any] | None = None) -> list[Any]:
    """Run a method of :data:`engine.workers.WORKER_METHODS` on every rank; the results by rank."""
    if method not in WORKER_METHODS:
        raise ValueError(WORKER_METHODS.unknown(method))
    return core.everywhere(method, args or [])
