"""Fixtures for tests that start engines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.forks import ForkFactory

# What these assert is told as in a test, and also checked under python -O.
for name in ("census", "driving", "lives", "machine", "promises", "questions"):
    pytest.register_assert_rewrite(f"tests.engine.{name}")


@pytest.fixture
def factory() -> Iterator[ForkFactory]:
    """A fork factory of which nothing may be left running after the test."""
    made = ForkFactory()
    yield made
    left = made.living()
    made.kill()
    assert not left, f"still running after the test: {left}"
