"""Replay files: one failing plan with all that is needed to see it fail again, and to say that it is the same failure.

JSON with these fields: ``format``, ``plan``, ``seed``, ``scenario``, ``verdict``, ``grade``, ``fingerprint``,
``versions``. Nothing else is accepted, so that a file of another tool or of a later format is refused, not guessed at.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from harness import plan as plans
from harness.plan import Plan, PlanError
from harness.trial import Trial
from harness.verdict import Grade, Verdict, Word

FORMAT = 1


class ReplayError(ValueError):
    """A file that is no replay file; one clear sentence."""


class Replay(Struct, frozen=True):
    """A plan and the verdict that it ended with. ``versions`` are those of the machine that wrote it."""

    plan: Plan
    verdict: Word
    fingerprint: str
    grade: Grade | None = None
    seed: int = 0
    scenario: str = ""
    versions: dict[str, str] = {}

    @property
    def word(self) -> str:
        """The verdict with its grade, as a person reads it."""
        return f"{self.verdict} ({self.grade})" if self.grade else self.verdict

    def same(self, verdict: Verdict) -> bool:
        """Whether a verdict is the one recorded: the same word, grade and fingerprint."""
        return (verdict.verdict, verdict.grade, verdict.fingerprint) == (self.verdict, self.grade, self.fingerprint)


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    plan: dict[str, Any]
    verdict: Word
    fingerprint: str
    grade: Grade | None = None
    seed: int = 0
    scenario: str = ""
    versions: dict[str, str] = {}


_SHARED = tuple(name for name in Replay.__struct_fields__ if name != "plan")


def of(trial: Trial) -> Replay:
    """The replay of a trial."""
    return Replay(plan=trial.plan, **{name: getattr(trial.verdict, name) for name in _SHARED})


def dump(replay: Replay) -> bytes:
    """The file's content: indented JSON, for people to read and to edit."""
    shared: dict[str, Any] = {name: getattr(replay, name) for name in _SHARED}
    file = _File(format=FORMAT, plan=plans.to_builtins(replay.plan), **shared)
    return msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"


def parse(data: bytes, name: str = "this") -> Replay:
    """Reads what `dump` wrote. Raises ReplayError, which begins with ``name``."""
    try:
        file = msgspec.json.decode(data, type=_File)
        if file.format != FORMAT:
            raise ReplayError(f"{name} is a replay file of format {file.format}; this version reads format {FORMAT}")
        plan = plans.from_builtins(file.plan)
    except msgspec.DecodeError as error:
        complaint = "" if isinstance(error, msgspec.ValidationError) else "not JSON: "
        raise ReplayError(f"{name} is not a replay file: {complaint}{error}") from None
    except PlanError as error:
        raise ReplayError(f"{name}: plan: {error}") from None
    return Replay(plan=plan, **{name: getattr(file, name) for name in _SHARED})


def load(path: Path) -> Replay:
    """Reads a replay file. Raises ReplayError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ReplayError(f"cannot read {path}: {error.strerror or error}") from None
    return parse(data, str(path))
