"""Starts of engines that are to fail, and the places and processes of which nothing may be left."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.client.aio import AsyncMPClient
from engine.client.sync import SyncMPClient
from engine.config import EngineConfig
from engine.errors import StartupError
from tests.engine.driving import begin
from tests.engine.forks import ForkFactory
from tests.engine.wires import Before

LEAD, SECOND = "dp0.rank0", "dp0.rank1"

AT_ONCE = 3.0
"""Seconds for what is noticed by other means than a deadline; those of the tests are far longer."""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the engines of a test make their private directories."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


Factories = Callable[..., ForkFactory]


@pytest.fixture
def factories() -> Iterator[Factories]:
    """Makes fork factories, of which nothing runs on after the test, whatever a change has broken."""
    made: list[ForkFactory] = []

    def make(before: Before | None = None) -> ForkFactory:
        made.append(ForkFactory(before))
        return made[-1]

    yield make
    for factory in made:
        factory.kill()


def start(kind: str, config: EngineConfig, factory: Any) -> None:
    """The constructor, for asyncio inside a loop; the client that it should not give is shut down."""

    async def inside() -> None:
        AsyncMPClient(config, factory).shutdown()

    if kind == "asyncio":
        asyncio.run(inside())
    else:
        SyncMPClient(config, factory).shutdown()


def fails(kind: str, config: EngineConfig, factory: Any, within: float = AT_ONCE) -> StartupError:
    """The error of the start, which must come in time."""
    with pytest.raises(StartupError) as caught:
        begin(lambda: start(kind, config, factory)).result(within)
    return caught.value
