"""What is said between the command and the run in a copy: one JSON object a line."""

from __future__ import annotations

import msgspec


class Job(msgspec.Struct):
    """What a zygote is asked for. `first` and `then` are ids of tests, with parameters or for all parameters."""

    folder: str
    """The copy; the same with ``.t`` at its end is for temporary files."""
    log: str
    """The file for what is printed there."""
    first: list[str]
    then: list[str]
    """Run only if each of `first` has failed, with some parameters."""
    limit: float
    """Seconds for one test."""


class Served(msgspec.Struct, tag=True):
    """Whether the healthy request was; `why` it was not."""

    served: bool
    why: str


class Ran(msgspec.Struct, tag=True):
    """The end of one test: `passed`, `failed` or `skipped`. `test` is its id with parameters."""

    test: str
    outcome: str
    why: str
    seconds: float
    reached: list[int] = []
    """In a copy with probes, the numbers of those that were passed."""

    @property
    def base(self) -> str:
        return base(self.test)


class Broken(msgspec.Struct, tag=True):
    """Why the run says nothing about the tests."""

    problem: str


class End(msgspec.Struct, tag=True):
    """The job is over: the last message, and the zygote's own. `problem`: how the run ended if it was not by itself."""

    problem: str


Message = Served | Ran | Broken | End


def base(node: str) -> str:
    """A test's id without its parameters, and of a marked class without its methods."""
    path, _, name = node.partition("::")
    return f"{path}::{name.partition('[')[0].partition('::')[0]}"
