"""Every error of the engine, and the exit codes of a rank."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """How a rank process left. Any other code, or a negative one (killed by that signal), is nobody's choice."""

    STOPPED = 0
    """Orderly stop: the launcher asked for it."""
    OWN_FAILURE = 10
    """This rank failed by itself; its report says how."""
    PEER_FAILED = 11
    """This rank left because another process of the engine died or failed."""
    DEADLINE = 12
    """A wait of this rank ran into its deadline."""
    LAUNCHER_GONE = 13
    """The process that started this rank is gone."""


class EngineError(Exception):
    """Base of all errors that the engine raises on purpose."""


class ConfigError(EngineError, ValueError):
    """A configuration value is wrong. The text names the field, the value seen and what was expected."""

    def __init__(self, field: str, seen: object, expected: str) -> None:
        super().__init__(f"{field}: got {_shown(seen)}, expected {expected}")
        self.field = field
        self.seen = seen
        self.expected = expected


def _shown(seen: object) -> str:
    """The value as Python writes it, on one line of bearable length."""
    try:
        text = repr(seen).replace("\n", " ")
    except Exception:  # a number of too many digits, or somebody's own __repr__
        return f"a value of type {type(seen).__name__} that cannot be shown"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


_SHOWN = 200
"""Most characters of a wrong value that an error repeats."""


class EngineDeadError(EngineError):
    """The engine is dead and stays dead.

    `culprit` is the role that died or failed first, empty if nobody can tell; `cause` says how.
    """

    def __init__(self, culprit: str, cause: str) -> None:
        super().__init__(f"engine is dead: {culprit or 'nobody is named'}: {cause}")
        self.culprit = culprit
        self.cause = cause


class StartupError(EngineDeadError):
    """The engine died before it was ready.

    `role` is the culprit, `exit_code` its exit code (None if it had not left), `phase` the last start-up phase that it
    reported.
    """

    def __init__(self, role: str, cause: str, *, exit_code: int | None, phase: str) -> None:
        super().__init__(role, cause)
        self.role = role
        self.exit_code = exit_code
        self.phase = phase
        left = "still running" if exit_code is None else f"exit code {exit_code}"
        self.args = (f"engine did not start: {role}: {cause} (phase {phase}, {left})",)


class EngineStalledError(EngineError):
    """The engine lives, but a request submitted now could not complete. It may heal; `culprit` is who is waited for."""

    def __init__(self, culprit: str, cause: str) -> None:
        super().__init__(f"engine is stalled: {culprit}: {cause}")
        self.culprit = culprit
        self.cause = cause


class EngineGenerateError(EngineError):
    """One request cannot be served as asked; the engine itself is well."""


class EngineBusyError(EngineGenerateError):
    """Back-pressure: as many requests are under way as the engine may hold. The same request may be accepted later."""


class UtilityError(EngineError):
    """A utility call failed; the engine itself is well. `method` is what was called, `text` what the engine says."""

    def __init__(self, method: str, text: str) -> None:
        super().__init__(text)
        self.method = method
        self.text = text


class UtilityTimeout(UtilityError, TimeoutError):
    """No reply to a utility call came within the time that its caller gave it; what it asked for may still be done."""


class PageError(EngineError):
    """The pages of the key-value cache do not add up: a leak, a double owner, a broken promise. The text lists them."""


class SchedulerStalled(EngineError):
    """Requests are under way, but the scheduler has nothing that a step could run."""


class RelayError(EngineError):
    """A relay frame is not the one that had to come next. The text names both."""


class HandshakeError(EngineError):
    """What came over `startup` is not what had to come next. The text names both."""


class InputError(EngineError):
    """A message on rank 0's input is not the one that had to come next, or cannot be read."""


class PeerFailed(EngineError):
    """Another process of the engine died or failed. `culprit` is its role, or empty if this rank cannot tell."""

    def __init__(self, culprit: str, cause: str) -> None:
        super().__init__(f"{culprit or 'a peer'}: {cause}")
        self.culprit = culprit
        self.cause = cause


class Accused(EngineError):
    """Another rank says that this one is the cause: it was late, or it is the one that differs."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class DeadlineExceeded(EngineError):
    """A bounded wait ran out. `culprit` is the role that was waited for, or empty if this rank cannot tell."""

    def __init__(self, culprit: str, cause: str) -> None:
        super().__init__(cause)
        self.culprit = culprit
        self.cause = cause


class LauncherGone(EngineError):
    """The lifeline ended: the process that started this rank is gone."""

    def __init__(self) -> None:
        super().__init__("the launcher is gone")


class StopRequested(EngineError):
    """Not a failure: the launcher, or rank 0 on its behalf, asked this rank to leave."""

    def __init__(self) -> None:
        super().__init__("stop requested")
