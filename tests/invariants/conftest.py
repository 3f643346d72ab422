"""Fixtures for tests that start engines."""

from tests.engine.conftest import factory as factory
