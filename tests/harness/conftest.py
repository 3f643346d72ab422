"""One real world for all tests that run plans: its zygote imports torch once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.world.real import RealWorld


@pytest.fixture(scope="session")
def world() -> Iterator[RealWorld]:
    with RealWorld(lanes=2) as opened:
        yield opened
