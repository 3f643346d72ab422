"""Fixtures for tests that start engines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.forks import ForkFactory


@pytest.fixture
def factory() -> Iterator[ForkFactory]:
    """A fork factory of which nothing may be left running after the test."""
    made = ForkFactory()
    yield made
    left = made.living()
    made.kill()
    assert not left, f"still running after the test: {left}"
