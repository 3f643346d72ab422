"""What a target's own functions say of messages, loaded by name; they are foreign code and must stop no traffic."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from harness.proxy.records import UNKNOWN, Kind

Classify = Callable[[str, str, Sequence[bytes]], Kind]
Foreign = Callable[[str, Sequence[bytes]], Sequence[bytes]]

_UNKNOWN = Kind(UNKNOWN)
_LEAST, _MOST = -(2**63), 2**63 - 1


class WordError(Exception):
    """A target's function failed or gave what it must not give; the message says what."""


def unclassified(link: str, direction: str, frames: Sequence[bytes]) -> Kind:
    """The classify function of a run that names none: every message is of kind `?`."""
    return _UNKNOWN


def unchanged(link: str, frames: Sequence[bytes]) -> Sequence[bytes]:
    """The foreign function of a run that names none: a copy is foreign enough."""
    return frames


class Words(msgspec.Struct, frozen=True):
    """The two functions of one run."""

    classify: Classify = unclassified
    foreign: Foreign = unchanged

    def name(self, link: str, direction: str, frames: Sequence[bytes]) -> tuple[str, int | None]:
        """Kind and number of a message. Raises `WordError`."""
        try:
            found = self.classify(link, direction, frames)
            kind, number = found.kind, found.number
            if type(kind) is str and (number is None or _LEAST <= number <= _MOST):
                return kind, number
        except Exception as error:  # foreign code
            raise WordError(f"classify failed: {type(error).__name__}: {error}") from error
        raise WordError(
            f"classify returned kind {kind!r} and number {number!r}; expected a string and an integer or None"
        )

    def moved(self, link: str, frames: Sequence[bytes]) -> list[bytes]:
        """The parts of a message as a foreign run would have sent it. Raises `WordError`."""
        try:
            return [bytes(part) for part in self.foreign(link, frames)]
        except Exception as error:  # foreign code
            raise WordError(f"foreign failed: {type(error).__name__}: {error}") from error


def load_classify(name: str | None) -> Classify:
    """Import `module:function`. Raises `ValueError` when it is not there."""
    found: Classify = unclassified if name is None else _load("classify", name)
    return found


def load_foreign(name: str | None) -> Foreign:
    """Import `module:function`. Raises `ValueError` when it is not there."""
    found: Foreign = unchanged if name is None else _load("foreign", name)
    return found


def _load(what: str, name: str) -> Any:
    module, _, function = name.partition(":")
    if not module or not function:
        raise ValueError(f"bad {what} {name!r}: expected module:function")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"cannot load {what} {name!r}: {error}") from error
    if not callable(found):
        raise ValueError(f"{what} {name!r} is not a function")
    return found
