"""Ranks that have done different things find out, and one of them is named."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from engine.agreement import dissenters
from engine.core import EngineCore
from engine.errors import ExitCode
from engine.model import reference
from tests.engine import wires
from tests.engine.forks import ForkFactory, replace


@pytest.mark.parametrize(
    ("digests", "accused"),
    [
        ([5, 5, 5], []),
        ([5, 5, 6], [2]),
        ([6, 5, 5], [0]),
        ([5, 6], [1]),
        ([5, 6, 7], [1, 2]),
        ([5, 6, 5, 6], [1, 3]),
        ([5, 6, 6, 6], [0]),
    ],
)
def test_the_minority_is_accused_or_who_differs_from_rank_0(digests: list[int], accused: list[int]) -> None:
    assert dissenters(digests) == accused


def differs(victim: str) -> wires.Before:
    """The victim's digest is another one from its third step on."""

    def before(role: str) -> None:
        if role == victim:

            def digest(self: EngineCore) -> int:
                return self._digest.value ^ (self.steps >= 3) << 63

            replace(EngineCore, "digest", property(digest))

    return before


@pytest.mark.parametrize(("size", "victim"), [(2, 1), (3, 0), (3, 1), (3, 2)])
def test_a_divergence_is_told_by_all_with_every_digest_and_one_culprit(size: int, victim: int, tmp_path: Path) -> None:
    causes = wires.Causes(tmp_path)
    role = f"dp0.rank{victim}"
    factory = ForkFactory(wires.all_of(causes.before, differs(role)))
    error = asyncio.run(wires.death(factory, size, digest_interval=1))
    assert error.culprit == role
    codes = factory.exits()
    assert codes.pop(victim) == ExitCode.OWN_FAILURE
    assert codes == [ExitCode.PEER_FAILED] * (size - 1)
    for rank in range(size):
        cause = causes.of(f"dp0.rank{rank}").cause
        assert cause.startswith("the ranks differ after step 3: digests are ")
        said = dict(re.findall(r"(dp0\.rank\d) ([0-9a-f]{16})", cause))
        assert len(said) == size
        assert list(said.values()).count(said[role]) == 1


def test_the_interval_counts_steps(tmp_path: Path) -> None:
    causes = wires.Causes(tmp_path)
    factory = ForkFactory(wires.all_of(causes.before, differs("dp0.rank1")))
    asyncio.run(wires.death(factory, 2, digest_interval=8))
    assert "the ranks differ after step 8" in causes.of("dp0.rank0").cause


def test_equal_ranks_never_notice() -> None:
    tokens = asyncio.run(wires.first_tokens(ForkFactory(), 3, digest_interval=1))
    assert tokens == reference.greedy("tiny", [1, 2, 3], 4)
